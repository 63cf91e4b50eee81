"""The playground in Chromium: chat, completion, stopping, refusals."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from tests.browser.actions import DEMO, HOSTILE, delete
from tests.browser.playground import (
    USAGE,
    Chunks,
    answer_with,
    ask,
    await_end,
    code_of,
    delta,
    forget_chat,
    kept,
    says,
)
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser


def test_chat_streams_and_goes_on(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "24")
    page.click("summary >> text=Stop strings")
    page.fill("#members", '{"ignore_eos": true}')  # one token would have no rate
    for number in (1, 2):
        ask(page, "What does it return?", turns=2 * number)
    text = page.locator(".turn").last.locator(".figures").inner_text()
    assert re.search(r"first token \d+", text)
    assert re.search(r"tokens/s [\d.]+", text)
    assert re.search(r"prompt \d+\s+cached \d+", text)
    code = code_of(page)
    assert "/v1/chat/completions" in code
    assert code.count('"role": "assistant"') == 2
    forget_chat(page, "What does it")
    expect(page.locator(".turn")).to_have_count(0)


def test_a_reload_keeps_the_chat(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "12")
    page.fill("#p-temperature", "0")
    ask(page, "What does a function return?", turns=2)
    expect(page).to_have_url(re.compile(r"\?chat=[0-9a-f-]{36}$"))
    written = page.locator(".turn.assistant .text").inner_text()
    page.reload()
    expect(page.locator(".turn.assistant .text")).to_have_text(written, use_inner_text=True)
    expect(page.locator("#p-max_tokens")).to_have_value("12")
    ask(page, "And then?", turns=4)
    page.get_by_role("button", name="Delete the chat What does").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#chats")).not_to_contain_text("What does a function return?")


def test_a_reload_before_the_answer_keeps_the_question(page: Page) -> None:
    sockets: list[WebSocketRoute] = []

    def accept(socket: WebSocketRoute) -> None:
        """The first request waits for its answer for ever; those of the page that is loaded anew are answered."""
        sockets.append(socket)

        def reply(message: str | bytes) -> None:
            request = json.loads(message)["id"]
            socket.send(json.dumps({"type": "accepted", "id": request}))
            if socket is not sockets[0]:
                chunk = delta({"delta": {"content": "Nothing."}, "finish_reason": "stop"})
                socket.send(json.dumps({"type": "chunk", "id": request, "chunk": chunk}))
                done = {"type": "done", "id": request, "usage": USAGE, "ttft_s": 0.1, "duration_s": 0.2}
                socket.send(json.dumps(done))

        socket.on_message(reply)

    page.route_web_socket(re.compile("/v1/stream$"), accept)
    page.goto("/playground/?model=demo")
    page.fill("#prompt", "What is lost?")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"\?chat=[0-9a-f-]{36}$"))
    page.reload()
    expect(page.locator(".turn.user .text")).to_have_text("What is lost?")
    ask(page, "What is kept?", turns=2)  # beside the question that has no answer
    expect(page.locator(".actions").first).to_contain_text("Branch 2 of 2")
    forget_chat(page, "What is lost?")


def test_a_chat_about_odd_characters_is_kept(page: Page) -> None:
    """The six characters that stand for NUL in JSON are text like any other; NUL and half a pair are replaced."""
    answer_with(page, says("It is \\u0000 there; here \0 and \ud83d."))
    page.goto("/playground/?model=demo")
    ask(page, "How is NUL written?", turns=2)
    page.reload()
    expect(page.locator(".turn.assistant .text")).to_have_text("It is \\u0000 there; here \ufffd and \ufffd.")
    forget_chat(page, "How is NUL")


def test_the_composer_is_always_in_sight(page: Page) -> None:
    """The conversation scrolls, not the page; so at the sizes of a phone and of a large screen."""
    answer_with(page, says("\n\n".join(f"Paragraph {number}." for number in range(80))))
    for width, height in ((360, 640), (1440, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.goto("/playground/?model=demo")
        ask(page, "A long one", turns=2)
        assert page.evaluate("document.documentElement.scrollHeight - innerHeight") <= 0
        box = page.locator("#composer").bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height
        assert page.locator(".conversation").evaluate("(log) => log.scrollHeight - log.clientHeight") > 0
        forget_chat(page, "A long one")


def test_edits_and_other_answers_are_branches(page: Page) -> None:
    asked = answer_with(page, lambda request: says(f"Answer {len(asked)}.")(request))
    page.goto("/playground/?model=demo")
    ask(page, "First", turns=2)
    ask(page, "Second", turns=4)
    page.get_by_role("button", name="Edit").first.click()
    expect(page.get_by_role("textbox", name="Changed message")).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.type("Changed")
    with kept(page):
        page.keyboard.press("Control+Enter")
    expect(page.locator(".turn .text")).to_have_text(["Changed", re.compile("Answer 3")])
    assert [message["content"] for message in asked[-1]["messages"]] == ["Changed"]
    await_end(page)
    with kept(page):
        page.get_by_role("button", name="Answer again").click()
    expect(page.locator(".turn .text")).to_have_text(["Changed", re.compile("Answer 4")])
    await_end(page)
    with kept(page):
        page.get_by_role("button", name="Earlier branch").last.click()
    expect(page.locator(".turn .text")).to_have_text(["Changed", re.compile("Answer 3")])
    page.get_by_role("button", name="Earlier branch").first.focus()
    with kept(page):
        page.keyboard.press("Enter")
    first = ["First", re.compile("Answer 1"), "Second", re.compile("Answer 2")]
    expect(page.locator(".turn .text")).to_have_text(first)
    expect(page.locator(".actions").first).to_contain_text("Branch 1 of 2")
    page.reload()
    expect(page.locator(".turn .text")).to_have_text(first)
    with kept(page):
        page.get_by_role("button", name="Later branch").click()
    expect(page.locator(".turn .text")).to_have_text(["Changed", re.compile("Answer 4")])
    forget_chat(page, "First")


def test_thinking_is_collapsed_and_calls_are_answered(page: Page) -> None:
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}

    def answers(request: dict[str, Any]) -> Chunks:
        if request["messages"][-1]["role"] == "tool":
            return says("It rains.")(request)
        argument = {"index": 0, "function": {"arguments": '{"place": "Bonn"}'}}
        return [
            delta({"delta": {"reasoning_content": "I have to look it up."}}),
            delta({"delta": {"tool_calls": [call]}}),
            delta({"delta": {"tool_calls": [argument]}}),
            delta({"delta": {}, "finish_reason": "tool_calls"}),
        ]

    asked = answer_with(page, answers)
    page.goto("/playground/?model=demo")
    page.click("summary >> text=Tools")
    page.get_by_role("button", name="Example of tools").click()
    page.select_option("#tool_choice", "required")
    ask(page, "The weather in Bonn?", turns=2)
    assert asked[0]["tools"][0]["function"]["name"] == "get_weather"
    assert asked[0]["tool_choice"] == "required"
    thoughts = page.locator(".reasoning")
    expect(thoughts.locator("pre")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator("pre")).to_have_text("I have to look it up.")
    expect(page.locator(".call")).to_contain_text('"place": "Bonn"')
    page.get_by_label("Result of get_weather").fill("rain")
    with kept(page):
        page.get_by_role("button", name="Send the result").click()
    expect(page.locator(".turn").last).to_contain_text("It rains.")
    assert [message["role"] for message in asked[1]["messages"]] == ["user", "assistant", "tool"]
    assert asked[1]["messages"][2] == {"role": "tool", "tool_call_id": "call-1", "content": "rain"}
    assert asked[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"place": "Bonn"}'
    forget_chat(page, "The weather")


def test_wrong_json_is_said_and_not_sent(page: Page) -> None:
    asked = answer_with(page, says("No."))
    page.goto("/playground/?model=demo")
    page.click("summary >> text=Answer as JSON")
    page.fill("#schema", "{")
    expect(page.locator("#schema-problem")).to_contain_text("It isn't JSON")
    page.fill("#prompt", "Hello")
    page.keyboard.press("Enter")
    expect(page.locator("#schema")).to_be_focused()
    page.get_by_role("button", name="Example of a schema").click()
    expect(page.locator("#schema-problem")).to_be_hidden()
    assert asked == []


def test_a_schema_is_followed(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.click("summary >> text=Answer as JSON")
    page.fill("#schema", json.dumps({"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}))
    ask(page, "Write JSON", turns=2)
    assert json.loads(page.locator(".turn.assistant .text").inner_text())["a"] == 7
    forget_chat(page, "Write JSON")


def test_probabilities_by_pointer_keyboard_and_table(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.check("#probabilities")
    page.fill("#p-max_tokens", "8")
    page.click("summary >> text=Stop strings")
    page.fill("#members", '{"ignore_eos": true}')
    ask(page, "What is a list?", turns=2)
    tokens = page.locator(".token")
    expect(tokens).to_have_count(8)
    detail = page.locator(".token-detail")
    tokens.nth(2).hover()
    expect(detail).to_be_visible()
    assert detail.locator("meter").count() >= 5
    page.mouse.move(1, 1)
    expect(detail).to_be_hidden()
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(detail).to_be_visible()
    page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    assert re.search(r"[\d.]+ %; else ", tokens.last.get_attribute("aria-label"))
    page.click("summary >> text=As a table")
    expect(page.locator(".turn tbody tr")).to_have_count(8)
    page.get_by_role("button", name="Token probabilities").click()
    expect(tokens).to_have_count(0)
    page.click("text=Completion")
    page.fill("#prompt", "The statement")
    page.keyboard.press("Control+Enter")
    expect(tokens).to_have_count(8)
    forget_chat(page, "What is a list")


def test_the_code_runs(page: Page, site: LiveServer, tmp_path: Path) -> None:
    """Each language writes what the API answers."""
    page.goto("/playground/?model=demo")
    page.click("text=Completion")
    for name, value in {"temperature": "0", "max_tokens": "12", "min_p": "0.1"}.items():
        page.locator(f"#p-{name}").evaluate("(input, value) => { input.value = value; }", value)
    page.fill("#prompt", 'The statement\'s "first"\nline')
    written = {language: code_of(page, language) for language in ("curl", "python", "javascript")}
    body = json.loads(re.search(r"-d '(.*)'$", written["curl"], re.DOTALL).group(1).replace("'\\''", "'"))
    assert body["min_p"] == 0.1
    text = site.complete(**{key: value for key, value in body.items() if key != "stream"}).json()["choices"][0]["text"]
    assert text
    script = tmp_path / "run.py"
    script.write_text(written["python"])
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.rstrip("\n") == text.rstrip("\n")
    said = page.evaluate(
        """async (code) => {
          let said = "";
          const process = { stdout: { write: (text) => (said += text) } };
          const AsyncFunction = (async () => {}).constructor;
          await new AsyncFunction("process", code)(process);
          return said;
        }""",
        written["javascript"],
    )
    assert said == text


def test_sampling_starts_where_the_checkpoint_says(page: Page, site: LiveServer, tmp_path: Path) -> None:
    place = shutil.copytree(DEMO, tmp_path / "cool")
    (place / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_p": 0.8, "top_k": 20}))
    site.register(place, "cool")
    page.goto("/playground/?model=cool")
    expect(page.locator("#p-temperature")).to_have_attribute("placeholder", "0.3")
    expect(page.locator("#p-temperature-slider")).to_have_value("0.3")
    expect(page.locator("#own-temperature")).to_have_text("the model's own: 0.3 (generation_config.json)")
    code = code_of(page)
    assert '"temperature": 0.3' in code
    assert '"top_k": 20' in code
    page.fill("#p-temperature", "0.9")
    expect(page.locator("#own-temperature")).to_have_text(re.compile("yours; the model's own: 0.3"))
    page.select_option("#model", "demo")
    expect(page.locator("#p-top_p")).to_have_attribute("placeholder", "1")
    expect(page.locator("#p-temperature")).to_have_value("0.9")
    expect(page.locator("#own-temperature")).to_have_text("")
    page.get_by_role("button", name="Back to the defaults").click()
    expect(page.locator("#p-temperature")).to_have_value("")
    delete(page, site, "cool")


def test_completion_is_deterministic_and_the_curl_line_says_the_same(page: Page, site: LiveServer) -> None:
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-temperature", "0")
    page.fill("#p-max_tokens", "16")
    page.fill("#prompt", "The statement")
    body = json.loads(re.search(r"-d '(.*)'$", code_of(page), re.DOTALL).group(1))
    page.locator("#prompt").press("Control+Enter")
    expect(page.locator(".figures")).to_contain_text("ended by")
    written = page.locator(".turn.assistant .text").inner_text()
    answer = site.complete(**{key: value for key, value in body.items() if key != "stream"}).json()
    assert written.strip() == answer["choices"][0]["text"].strip()


def test_stopping_frees_the_slot(page: Page, site: LiveServer) -> None:
    """The worker waits from its first words on: it would have written much before a hand could stop it.

    All of it takes half a minute, and longer beside other work.
    """
    held = ExitStack()
    is_held: list[bool] = []

    def hold_the_worker(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def forward(message: str | bytes) -> None:
            frame = json.loads(message)
            if "request" in frame:
                frame["request"] |= {"ignore_eos": True, "n": 128}
            server.send(json.dumps(frame))

        def answer(message: str | bytes) -> None:
            if json.loads(message)["type"] == "chunk" and not is_held:
                is_held.append(True)
                held.enter_context(site.held_worker())
            socket.send(message)

        socket.on_message(forward)
        server.on_message(answer)

    page.route_web_socket(re.compile("/v1/stream$"), hold_the_worker)
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-max_tokens", "1000")
    page.fill("#prompt", "The statement")
    with held:
        page.keyboard.press("Control+Enter")
        expect(page.locator(".figures")).to_contain_text("tokens")
        page.keyboard.press("Escape")
        expect(page.locator(".figures")).to_contain_text("ended by you")
        expect(page.locator("#send")).to_be_visible()
    goes_on_at = time.time()
    wait_until(lambda: site.is_idle_since(goes_on_at), 10, "the end of the request, of half a minute otherwise,")


def test_a_waiting_request_says_where_it_stands(page: Page) -> None:
    place = {"position": 3, "waits_for": "capacity", "estimated_s": 4.2, "load_left_s": None, "evicts": None}
    swap = {**place, "waits_for": "swap", "estimated_s": None, "evicts": HOSTILE}
    sockets: list[tuple[WebSocketRoute, str]] = []

    def serve(socket: WebSocketRoute) -> None:
        socket.on_message(lambda message: sockets.append((socket, json.loads(message)["id"])))

    page.route_web_socket(re.compile("/v1/stream$"), serve)
    page.goto("/playground/")
    page.fill("#prompt", "Where am I?")
    page.keyboard.press("Enter")
    figures = page.locator(".turn.assistant .figures")
    expect(figures).to_have_text("waiting for the model …")
    wait_until(lambda: page.title() and sockets, 20, "the request")
    (socket, request_id) = sockets[0]
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.press("Escape")  # of the palette, not of the answer
    expect(page.locator("#palette")).to_be_hidden()

    def tell(kind: str, **members: object) -> None:
        socket.send(json.dumps({"type": kind, "id": request_id, **members}))

    tell("accepted")
    tell("queue", queue=swap)
    expect(figures).to_have_text(f"waits until {HOSTILE} is unloaded")
    tell("queue", queue=place)
    expect(figures).to_have_text("number 3 in the queue, about 4 s")
    expect(figures).to_have_text("reading the prompt …")  # nothing was said for three seconds
    with kept(page):
        tell("chunk", chunk=delta({"delta": {"content": "Here."}, "finish_reason": "stop"}))
        tell("done", usage=USAGE, ttft_s=0.1, duration_s=0.2)
    expect(figures).to_contain_text("ended by")
    assert len(sockets) == 1  # nothing was cancelled
    forget_chat(page, "Where am I?")


def test_a_refused_request_is_explained(page: Page) -> None:
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-max_tokens", "100000")
    page.fill("#prompt", "The statement")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".turn .note.bad")).to_contain_text("maximum context length is 1024 tokens")
    expect(page.locator("#send")).to_be_enabled()
    expect(page.locator("#prompt")).to_have_value("The statement")


def test_an_answer_has_the_room_that_is_left(page: Page) -> None:
    asked = answer_with(page, says("Here."))
    page.goto("/playground/?model=demo")
    expect(page.locator("#own-max_tokens")).to_have_text("this page's default, or as much as fits")
    with kept(page):
        ask(page, "Short", turns=2)
    assert asked[0]["max_tokens"] == 512
    page.fill("#prompt", "long " * 120)  # 512 tokens may not fit beside it
    with kept(page):
        page.keyboard.press("Enter")
    await_end(page)
    assert "max_tokens" not in asked[1]
    page.fill("#p-max_tokens", "700")
    page.fill("#prompt", "As I say")
    with kept(page):
        page.keyboard.press("Enter")
    await_end(page)
    assert asked[2]["max_tokens"] == 700
    forget_chat(page, "Short")


def test_a_conversation_that_is_too_long_says_what_to_do(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.fill("#prompt", "word " * 1500)
    page.keyboard.press("Enter")
    note = page.locator(".turn .note.bad")
    expect(note).to_contain_text("maximum context length is 1024 tokens")
    expect(note).to_contain_text("Begin a new chat, or edit an earlier message")
    page.fill("#p-max_tokens", "1000")
    page.fill("#prompt", "word " * 100)
    page.keyboard.press("Enter")
    expect(page.locator(".turn .note.bad").last).to_contain_text("Make “Longest answer” smaller, or leave it empty")


def test_without_scripts_a_sentence_says_so_and_chats_are_read(
    page: Page, chromium: Browser, site: LiveServer, session_state: dict
) -> None:
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "8")
    ask(page, "Is it kept?", turns=2)
    expect(page).to_have_url(re.compile(r"\?chat="))
    context = chromium.new_context(base_url=site.url, storage_state=session_state, java_script_enabled=False)
    plain = context.new_page()
    plain.goto(page.url)
    assert "Trying a model here needs JavaScript" in plain.locator("main").inner_text()
    expect(plain.locator(".turn.user")).to_contain_text("Is it kept?")
    for selector in ("#composer", "#model", "#settings-panel"):
        expect(plain.locator(selector)).to_be_hidden()
    context.close()
    forget_chat(page, "Is it kept")


def test_the_playground_alone_with_the_keyboard(page: Page) -> None:
    page.set_viewport_size({"width": 1100, "height": 800})
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "8")
    page.locator("[aria-controls=settings-panel]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#settings-panel")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#settings-panel")).to_be_visible()
    page.locator("[aria-controls=chats-panel]").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Close the chats")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#chats-panel")).to_be_hidden()
    expect(page.locator("[aria-controls=chats-panel]")).to_be_focused()
    page.locator("#tab-settings").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-code")).to_be_focused()
    expect(page.locator("#code")).to_be_visible()
    page.locator("#prompt").focus()
    page.keyboard.type("By keyboard")
    page.keyboard.press("Tab")
    expect(page.locator("#send")).to_be_focused()
    with kept(page):
        page.keyboard.press("Enter")
    expect(page.locator(".turn.assistant .figures")).to_contain_text("ended by")
    expect(page.locator("#prompt")).to_be_focused()
    forget_chat(page, "By keyboard")


def test_a_request_that_is_too_large_is_not_sent(page: Page) -> None:
    asked = answer_with(page, says("No."))
    page.goto("/playground/?model=demo")
    page.evaluate("document.querySelector('#prompt').value = 'word '.repeat(3.5 * 2 ** 20)")
    page.locator("#send").click()
    expect(page.locator("#toasts")).to_contain_text("the server takes 16.0 MiB")
    expect(page.locator(".turn")).to_have_count(0)
    assert page.evaluate("document.querySelector('#prompt').value.length") > 16 << 20
    assert asked == []
