"""Pictures in the playground: chosen, pasted, removed, sent and kept."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.browser.actions import delete, row_like_demo
from tests.browser.playground import answer_with, ask, code_of, forget_chat, says
from tests.inference.llm.vision import Phi3V
from tests.inference.text.images.pictures import encoded
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def seeing(site: LiveServer) -> Iterator[str]:
    """The name of a model that the page takes for one that sees; nothing loads it."""
    with row_like_demo(site, "seeing", "row.inspection['spec']['vision'] = {'kind': 'any'};"):
        yield "seeing"


def test_pictures_are_attached_pasted_removed_and_sent(page: Page, seeing: str) -> None:
    asked = answer_with(page, says("A pixel."))
    page.goto(f"/playground/?model={seeing}")
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


def test_a_model_that_sees_answers(page: Page, site: LiveServer, tmp_path: Path) -> None:
    """A tiny Phi-3-vision, from the file chooser to the tokens that its tower makes of the picture."""
    place = tmp_path / "eyes"
    place.mkdir()
    model = Phi3V(place)
    names = {"chat_template": model.tokenizer.chat_template, "bos_token": "<s>", "eos_token": "</s>"}
    (place / "tokenizer_config.json").write_text(json.dumps(names))
    site.register(place, "eyes")
    page.goto("/playground/?model=eyes")
    page.fill("#p-max_tokens", "4")
    expect(page.locator("#attach")).to_be_visible()
    ask(page, "What is it?", turns=2)
    without = prompt_tokens(page)
    page.set_input_files("#image-files", {"name": "red.png", "mimeType": "image/png", "buffer": red_picture()})
    expect(page.locator(".attached img")).to_have_count(1)
    ask(page, "And this?", turns=4)
    expect(page.locator(".turn.user img")).to_have_count(1)
    assert prompt_tokens(page) > without + 20
    forget_chat(page, "What is it")
    delete(page, site, "eyes")


def red_picture() -> bytes:
    return base64.b64decode(encoded(Image.new("RGB", (64, 48), "red")))


def prompt_tokens(page: Page) -> int:
    """Of the last answer."""
    return int(re.search(r"prompt\s+(\d+)", page.locator(".turn").last.locator(".figures").inner_text()).group(1))
