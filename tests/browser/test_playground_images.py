"""Pictures in the playground: chosen, pasted, removed, sent and kept."""

from __future__ import annotations

import base64
import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.playground import answer_with, ask, code_of, forget_chat, says

pytestmark = pytest.mark.browser


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def let_see(page: Page) -> None:
    """Let the page take the demo model for one that sees."""

    def serve(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, body=response.text().replace('"has_vision": false', '"has_vision": true'))

    page.route(re.compile(r"/playground/(\?|$)"), serve)


def test_pictures_are_attached_pasted_removed_and_sent(page: Page) -> None:
    let_see(page)
    asked = answer_with(page, says("A pixel."))
    page.goto("/playground/?model=demo")
    picture = {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(PIXEL)}
    page.set_input_files("#image-files", [picture, {**picture, "name": "second.png"}])
    expect(page.locator(".attached img")).to_have_count(2)
    page.get_by_role("button", name="Remove second.png").click()
    expect(page.locator(".attached img")).to_have_count(1)
    expect(page.locator("#prompt")).to_be_focused()
    page.evaluate(
        """(data) => {
          const bytes = Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0));
          const clipboardData = new DataTransfer();
          clipboardData.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
          const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
          document.querySelector("#prompt").dispatchEvent(event);
        }""",
        PIXEL,
    )
    expect(page.locator(".attached img")).to_have_count(2)
    assert "data:image/png;base64,iVBORw0KGgo" in code_of(page)
    page.set_input_files("#image-files", {"name": "a.svg", "mimeType": "image/svg+xml", "buffer": b"<svg/>"})
    expect(page.locator("#toasts")).to_contain_text("PNG, JPEG, WebP and GIF are read")
    ask(page, "What is it?", turns=2)
    parts = asked[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert parts[0]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    expect(page.locator(".turn.user img")).to_have_count(2)
    expect(page.locator(".attached")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"\?chat="))
    page.reload()
    expect(page.locator(".turn.user img")).to_have_count(2)
    forget_chat(page, "What is it")


def test_a_model_that_reads_text_takes_no_pictures(page: Page) -> None:
    page.goto("/playground/?model=demo")
    expect(page.locator("#attach")).to_be_hidden()
    page.set_input_files("#image-files", {"name": "a.png", "mimeType": "image/png", "buffer": base64.b64decode(PIXEL)})
    expect(page.locator("#toasts")).to_contain_text("demo reads text only")
    expect(page.locator(".attached")).to_have_count(0)
