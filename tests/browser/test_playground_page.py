"""The playground in Chromium: chat, completion, stopping, refusals."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

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
