"""What several tests do in the playground, and a server's side that says what a test wants."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, Request, WebSocketRoute, expect

USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 12},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
Chunks = Iterable[dict[str, Any]]


def delta(choice: dict[str, Any]) -> dict[str, Any]:
    """A chunk of a chat; ``choice`` has a delta, and what else differs."""
    return {"choices": [{"index": 0, "finish_reason": None, "logprobs": None, **choice}]}


def answer_with(page: Page, answers: Callable[[dict[str, Any]], Chunks]) -> list[dict[str, Any]]:
    """Answer the page's requests in the server's place; returns the list that fills with their bodies."""
    asked: list[dict[str, Any]] = []

    def serve(socket: WebSocketRoute) -> None:
        def reply(message: str | bytes) -> None:
            frame = json.loads(message)
            if frame["type"] == "cancel":
                return socket.send(json.dumps({"type": "cancelled", "id": frame["id"]}))
            asked.append(frame["request"])
            socket.send(json.dumps({"type": "accepted", "id": frame["id"]}))
            for chunk in answers(frame["request"]):
                socket.send(json.dumps({"type": "chunk", "id": frame["id"], "chunk": chunk}))
            done = {"type": "done", "id": frame["id"], "usage": USAGE, "ttft_s": 0.1, "duration_s": 0.2}
            socket.send(json.dumps(done))

        socket.on_message(reply)

    page.route_web_socket(re.compile("/v1/stream$"), serve)
    return asked


def says(text: str) -> Callable[[dict[str, Any]], Chunks]:
    return lambda request: [delta({"delta": {"content": text}}), delta({"delta": {}, "finish_reason": "stop"})]


@contextmanager
def kept(page: Page) -> Iterator[None]:
    """Wait, at the end of the block, until the page has kept its chat: as it is now, and not a question alone."""
    sent: list[Request] = []

    def note(request: Request) -> None:
        sent.append(request)

    page.on("request", note)
    try:
        with page.expect_response(lambda found: found.request in sent and is_keeping(found.request)):
            yield
    finally:
        page.remove_listener("request", note)


def is_keeping(request: Request) -> bool:
    """Whether a request keeps a chat whose last answers have ended; their question was kept before."""
    if request.method != "PUT" or "/chats/" not in request.url:
        return False
    chat = request.post_data_json
    last = [conversation["turns"][-1] for conversation in (chat, chat.get("second")) if conversation]
    return not any("figures" in turn and "reason" not in turn and "prompt" not in turn["figures"] for turn in last)


def await_end(page: Page) -> None:
    """Wait until nothing is being written: its last words may be shown before it has ended."""
    expect(page.locator(".turn.live")).to_have_count(0)
    expect(page.locator("#send")).to_be_visible()


def ask(page: Page, text: str, *, turns: int) -> None:
    """Send a message, and wait for the answer that makes so many turns, and until it is kept."""
    page.fill("#prompt", text)
    with kept(page):
        page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(turns)
    expect(page.locator(".turn").last.locator(".figures")).to_contain_text("ended by")


def code_of(page: Page, language: str = "curl") -> str:
    """The request as code of a language; the settings are shown again."""
    page.click("#tab-code")
    page.click(f"#code-{language}")
    code = page.locator("#code").inner_text()
    page.click("#tab-settings")
    return code


def forget_chat(page: Page, title: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})  # the list of chats is in sight
    page.goto("/playground/")
    page.get_by_role("button", name=f"Delete the chat {title}").first.click()
    page.wait_for_load_state()
    expect(page.get_by_role("button", name=f"Delete the chat {title}")).to_have_count(0)
