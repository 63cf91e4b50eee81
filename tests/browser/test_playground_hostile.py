"""Hostile text in the playground: of models' Markdown, tokens, thoughts, calls and names."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import HOSTILE, row_like_demo
from tests.browser.playground import answer_with, delta, forget_chat, kept
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser


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
    pieces = (HOSTILE_MARKDOWN[:90], HOSTILE_MARKDOWN[90:])
    answer_with(page, lambda request: [delta({"delta": {"content": piece}}) for piece in pieces])
    page.goto("/playground/?model=demo")
    page.fill("#prompt", "Write")
    with kept(page):
        page.keyboard.press("Enter")
    expect(page.locator(".figures")).to_contain_text("tokens 2")
    for _ in range(2):
        text = page.locator(".turn.assistant .text")
        expect(text.locator("strong")).to_have_text("bold")
        expect(text.locator("td")).to_have_text(["1", "2"])
        expect(text.locator(".code-block .spread span")).to_have_text("python")
        expect(text.locator(".hl-string")).to_have_text('"monospaced"')
        expect(text.locator("pre.code code")).to_have_text('print("monospaced")\n')
        assert "mono" in text.locator("pre code").evaluate("(e) => getComputedStyle(e).fontFamily").lower()
        expect(text).to_contain_text("<script>alert(2)</script>")
        assert text.locator("a[href]").evaluate_all("(all) => all.map((a) => a.href)") == ["https://example.org/"]
        assert text.locator("img, script, iframe, svg, style, form, h1").count() == 0
        page.reload()
    forget_chat(page, "Write")


def test_hostile_tokens_thoughts_calls_and_names_stay_text(page: Page, site: LiveServer) -> None:
    other = {"token": f"{HOSTILE}2", "logprob": -2.0, "bytes": []}
    entry = {"token": HOSTILE, "logprob": -0.1, "bytes": [], "top_logprobs": [other]}
    call = {"index": 0, "id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    answer_with(
        page,
        lambda request: [
            delta({"delta": {"reasoning_content": HOSTILE}}),
            delta({"delta": {"content": HOSTILE}, "logprobs": {"content": [entry]}}),
            delta({"delta": {"tool_calls": [call]}, "finish_reason": HOSTILE}),
        ],
    )
    with row_like_demo(site, HOSTILE):
        page.goto("/playground/")
        page.select_option("#model", HOSTILE)
        page.click("text=Compare")
        page.get_by_role("button", name="Close the second column").click()
        page.check("#probabilities")
        page.fill("#prompt", HOSTILE)
        with kept(page):
            page.keyboard.press("Enter")
        turn = page.locator(".turn.assistant")
        expect(turn.locator(".figures")).to_contain_text(HOSTILE)
        turn.locator(".token").hover()
        expect(page.locator(".token-detail")).to_contain_text(HOSTILE)
        page.click("summary >> text=As a table")
        expect(turn.locator("tbody")).to_contain_text(HOSTILE)
        page.get_by_role("button", name="Token probabilities").click()
        expect(turn.locator(".text")).to_contain_text(HOSTILE)
        expect(page.locator(".results")).to_contain_text(f"Result of {HOSTILE}")
        page.click("#tab-code")
        for language in ("python", "javascript", "curl"):
            page.click(f"#code-{language}")
            expect(page.locator("#code")).to_contain_text(HOSTILE[:20])
        page.reload()
        expect(page.locator(".turn.assistant .text")).to_contain_text(HOSTILE)
        assert page.locator("main img").count() == 0
        forget_chat(page, HOSTILE)
