"""The playground with everything in it: axe, contrast and sizes, in both themes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import CONTRAST, axe_findings, schemes_of
from tests.browser.conftest import TIMEOUT_MS
from tests.browser.playground import answer_with, delta, forget_chat, kept

pytestmark = pytest.mark.browser

MARKDOWN = """## A heading

A list with `code`, **bold** and [a link](https://example.org/):

1. one
2. two

| Name | Kind |
|---|---|
| tuple | immutable |

```python
def first(items):  # of a list
    return items[0] or "nothing", 12
```
"""
CALL = {"index": 0, "id": "call-1", "function": {"name": "get_weather", "arguments": '{"place": "Bonn"}'}}
TOP = [
    {"token": token, "logprob": logprob, "bytes": []} for token, logprob in ((" a", -0.1), (" b", -3.0), (" c", -9.0))
]


def fill(page: Page) -> None:
    """Two columns: Markdown, thoughts and branches in one turn, tokens of all colours, a call that waits."""
    entries = [
        {"token": " b", "logprob": logprob, "bytes": [], "top_logprobs": TOP} for logprob in (-5, -2, -1, -0.4, 0)
    ]
    answers = [
        [delta({"delta": {"reasoning_content": "Let me think."}}), delta({"delta": {"content": MARKDOWN}})],
        [delta({"delta": {"content": " b" * 5}, "logprobs": {"content": entries}})],
        [delta({"delta": {"tool_calls": [CALL]}, "finish_reason": "tool_calls"})],
    ]
    asked = answer_with(page, lambda request: answers[min(len(asked), len(answers)) - 1])
    page.goto("/playground/?model=demo")
    for number, text in enumerate(("Explain", "Again", "Call it"), 1):
        page.fill("#prompt", text)
        with kept(page):
            page.locator("#prompt").press("Enter")
        expect(page.locator(".turn")).to_have_count(2 * number)
    page.locator("summary", has_text="Thoughts").click()
    with kept(page):
        page.get_by_role("button", name="Answer again").last.click()
    expect(page.locator("body")).to_contain_text("Branch 2 of 2")
    page.get_by_role("button", name="Edit").first.click()


@pytest.mark.parametrize(("width", "schemes"), [(360, ("light", "dark")), (1440, ("dark", "light"))])
def test_a_full_page_is_clean(open_page: Callable[..., Page], width: int, schemes: tuple[str, str]) -> None:
    page = open_page(width, color_scheme=schemes[0])
    page.set_default_timeout(TIMEOUT_MS)
    fill(page)
    found = {}
    for state in ("conversation", "settings", "code", "chats", "two columns"):
        if state == "settings" and not page.locator("#settings-panel").is_visible():
            page.click("[aria-controls=settings-panel]")
        if state == "code":
            page.click("#tab-code")
        if state == "chats" and not page.locator("#chats-panel").is_visible():
            page.keyboard.press("Escape")
            page.click("[aria-controls=chats-panel]")
        if state == "two columns":
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Compare").click()
        for scheme, rules in schemes_of(page, *schemes):
            found[state, scheme] = axe_findings(page, rules) + page.evaluate(CONTRAST)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, state
    assert {state: problems for state, problems in found.items() if problems} == {}
    forget_chat(page, "Explain")
