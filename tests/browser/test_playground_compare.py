"""Two columns of the playground in Chromium: one seed, both at once."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.browser.playground import delta, forget_chat, kept
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser


def test_two_columns_stream_with_one_seed(page: Page, site: LiveServer) -> None:
    """The alias means the same checkpoint: with one seed both write the same."""
    site.manage(
        "from models_registry.aliases import alias_promote; from models_registry.models import Checkpoint;"
        "alias_promote(name='stable', checkpoint=Checkpoint.objects.get(served_model_name='demo'))"
    )
    try:
        page.goto("/playground/?model=demo")
        assert page.locator("#model optgroup").evaluate_all("(all) => all.map((group) => group.label)") == [
            "Models", "Aliases", "Revisions",
        ]  # fmt: skip
        page.fill("#p-max_tokens", "24")
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#model-2")).to_be_focused()
        page.select_option("#model-2", "stable@1")
        page.fill("#prompt", "What is a tuple?")
        with kept(page):
            page.locator("#prompt").press("Enter")
        answers = page.locator(".turn.assistant")
        expect(answers).to_have_count(2)
        for number in (0, 1):
            expect(answers.nth(number).locator(".figures")).to_contain_text("ended by")
        texts = answers.locator(".text").all_inner_texts()
        assert texts[0] == texts[1] != ""
        expect(answers.nth(1).locator(".who")).to_have_text("stable@1")
        assert page.input_value("#p-seed") != ""
        expect(page).to_have_url(re.compile(r"\?chat="))
        page.reload()
        expect(page.locator("#model-2")).to_have_value("stable@1")
        expect(answers).to_have_count(2)
        assert [text.strip() for text in answers.locator(".text").all_inner_texts()] == [text.strip() for text in texts]
        page.get_by_role("button", name="Close the second column").click()
        expect(page.locator(".column")).to_have_count(1)
        forget_chat(page, "What is a tuple")
    finally:
        site.manage("from models_registry.models import ModelAlias; ModelAlias.objects.all().delete()")


def test_columns_run_at_once(page: Page) -> None:
    """Both requests are there before either has an answer."""
    waiting: list[tuple[WebSocketRoute, str]] = []

    def serve(socket: WebSocketRoute) -> None:
        def reply(message: str | bytes) -> None:
            frame = json.loads(message)
            if frame["type"] == "cancel":
                socket.send(json.dumps({"type": "cancelled", "id": frame["id"]}))
            else:
                waiting.append((socket, frame["id"]))

        socket.on_message(reply)

    page.route_web_socket(re.compile("/v1/stream$"), serve)
    page.goto("/playground/?model=demo")
    page.get_by_role("button", name="Compare").click()
    page.fill("#prompt", "Now")
    page.locator("#prompt").press("Enter")
    wait_until(lambda: page.wait_for_timeout(20) or len(waiting) == 2, 60, "the second request")
    for socket, key in waiting:
        chunk = delta({"delta": {"content": f"For {key}"}})
        socket.send(json.dumps({"type": "chunk", "id": key, "chunk": chunk}))
    expect(page.locator(".turn.assistant.live")).to_have_count(2)
    expect(page.locator(".turn.assistant.live").last).to_contain_text("For play-2")
    with kept(page):
        page.keyboard.press("Escape")
    expect(page.locator(".figures", has_text="ended by you")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"\?chat="))
    forget_chat(page, "Now")
