"""The playground in Chromium: chat, completion, stopping, refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.browser.actions import DEMO, delete
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser


def test_chat_streams_and_goes_on(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "24")
    for number in (1, 2):
        page.fill("#prompt", "What does it return?")
        page.keyboard.press("Enter")
        expect(page.locator("#readout")).to_contain_text("ended by")
        expect(page.locator(".turn")).to_have_count(2 * number)
    text = page.locator("#readout").inner_text()
    assert re.search(r"first token \d+", text)
    assert re.search(r"tokens/s [\d.]+", text)
    curl = page.locator("#curl").inner_text()
    assert "/v1/chat/completions" in curl
    assert curl.count('"role": "assistant"') == 2
    page.click("text=Start over")
    expect(page.locator(".turn")).to_have_count(0)


def test_a_reload_keeps_the_chat(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "12")
    page.fill("#prompt", "What does a function return?")
    page.keyboard.press("Enter")
    expect(page.locator("#readout")).to_contain_text("ended by")
    expect(page).to_have_url(re.compile(r"\?chat=[0-9a-f-]{36}$"))
    written = page.locator(".turn.assistant .text").inner_text()
    page.reload()
    expect(page.locator(".turn.assistant .text")).to_have_text(re.compile(re.escape(written[:20])))
    expect(page.locator("#p-max_tokens")).to_have_value("12")
    page.fill("#prompt", "And then?")
    page.keyboard.press("Enter")
    expect(page.locator("#readout")).to_contain_text("ended by")
    expect(page.locator(".turn")).to_have_count(4)
    page.get_by_role("button", name="Delete the chat What does").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#chats")).not_to_contain_text("What does a function return?")


HOSTILE_MARKDOWN = """# Heading
**bold** and `code` <img src=x onerror=alert(1)><script>alert(2)</script>
[a](javascript:alert(3)) [b](data:text/html,alert(4)) [c](https://example.org/) ![d](https://example.org/x.png)

| a | b |
|---|---|
| 1 | 2 |

```python
print("monospaced")
```
<iframe src="//example.org"></iframe><svg onload=alert(5)><style>*{display:none}</style><form action=//example.org>
"""


def test_markdown_is_drawn_and_hostile_text_stays_text(page: Page) -> None:
    """Dialogs, errors and requests that it would cause are complaints, which the fixture asserts away."""

    def answer(socket: WebSocketRoute) -> None:
        def reply(message: str | bytes) -> None:
            key = json.loads(message)["id"]
            socket.send(json.dumps({"type": "accepted", "id": key}))
            for piece in (HOSTILE_MARKDOWN[:90], HOSTILE_MARKDOWN[90:]):
                chunk = {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
                socket.send(json.dumps({"type": "chunk", "id": key, "chunk": chunk}))
            usage = {"prompt_tokens": 1, "completion_tokens": 2}
            socket.send(json.dumps({"type": "done", "id": key, "usage": usage, "ttft_s": 0.1, "duration_s": 0.2}))

        socket.on_message(reply)

    page.route_web_socket(re.compile("/v1/stream$"), answer)
    page.goto("/playground/?model=demo")
    page.fill("#prompt", "Write")
    page.keyboard.press("Enter")
    expect(page.locator("#readout")).to_contain_text("tokens 2")
    for _ in range(2):
        text = page.locator(".turn.assistant .text")
        expect(text.locator("strong")).to_have_text("bold")
        expect(text.locator("td")).to_have_text(["1", "2"])
        expect(text.locator("pre.code code")).to_have_text('print("monospaced")\n')
        assert "mono" in text.locator("pre code").evaluate("(e) => getComputedStyle(e).fontFamily").lower()
        expect(text).to_contain_text("<script>alert(2)</script>")
        assert text.locator("a[href]").evaluate_all("(all) => all.map((a) => a.href)") == ["https://example.org/"]
        assert text.locator("img, script, iframe, svg, style, form, h1").count() == 0
        page.reload()
    page.goto("/playground/")
    page.get_by_role("button", name="Delete the chat Write").click()
    expect(page.locator("#chats")).not_to_contain_text("Write")


def test_sampling_starts_where_the_checkpoint_says(page: Page, site: LiveServer, tmp_path: Path) -> None:
    place = shutil.copytree(DEMO, tmp_path / "cool")
    (place / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_p": 0.8, "top_k": 20}))
    site.manage(
        "from models_registry import services;"
        f"services.checkpoint_register(path={str(place)!r}, served_model_name='cool')"
    )
    page.goto("/playground/?model=cool")
    expect(page.locator("#p-temperature")).to_have_value("0.3")
    expect(page.locator("#own-temperature")).to_have_text("the model's own: 0.3 (generation_config.json)")
    expect(page.locator("#curl")).to_contain_text('"temperature": 0.3')
    expect(page.locator("#curl")).to_contain_text('"top_k": 20')
    page.fill("#p-temperature", "0.9")
    page.select_option("#model", "demo")
    expect(page.locator("#p-top_p")).to_have_value("1")
    expect(page.locator("#p-temperature")).to_have_value("0.9")
    expect(page.locator("#own-temperature")).to_have_text("")
    delete(page, site, "cool")


def test_completion_is_deterministic_and_the_curl_line_says_the_same(page: Page, site: LiveServer) -> None:
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-temperature", "0")
    page.fill("#p-max_tokens", "16")
    page.fill("#prompt", "The statement")
    body = json.loads(re.search(r"-d '(.*)'$", page.locator("#curl").inner_text(), re.DOTALL).group(1))
    page.keyboard.press("Control+Enter")
    expect(page.locator("#readout")).to_contain_text("ended by")
    written = page.locator(".turn.assistant .text").inner_text()
    answer = site.complete(**{key: value for key, value in body.items() if key != "stream"}).json()
    assert written.strip() == answer["choices"][0]["text"].strip()


def test_stopping_frees_the_slot(page: Page, site: LiveServer) -> None:
    """The worker waits from its first words on: it would have written all of them before a hand could stop it."""
    worker = site.pid_of("worker")
    held: list[int] = []

    def hold_the_worker(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def forward(message: str | bytes) -> None:
            frame = json.loads(message)
            if "request" in frame:
                frame["request"] |= {"ignore_eos": True, "n": 32}
            server.send(json.dumps(frame))

        def answer(message: str | bytes) -> None:
            if json.loads(message)["type"] == "chunk" and not held:
                held.append(worker)
                os.kill(worker, signal.SIGSTOP)
            socket.send(message)

        socket.on_message(forward)
        server.on_message(answer)

    page.route_web_socket(re.compile("/v1/stream$"), hold_the_worker)
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-max_tokens", "1000")
    page.fill("#prompt", "The statement")
    try:
        page.keyboard.press("Control+Enter")
        expect(page.locator("#readout")).to_contain_text("tokens")
        page.keyboard.press("Escape")
        expect(page.locator("#readout")).to_contain_text("ended by you")
        expect(page.locator("#send")).to_be_visible()
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_until(lambda: site.model().num_running == 0, 5, "the end of the request, of some seven seconds otherwise,")


def test_a_refused_request_is_explained(page: Page) -> None:
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-max_tokens", "100000")
    page.fill("#prompt", "The statement")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".turn .note.bad")).to_contain_text("maximum context length is 1024 tokens")
    expect(page.locator("#send")).to_be_enabled()
