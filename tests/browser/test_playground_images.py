"""Pictures in the playground: chosen, pasted, removed, sent and kept."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.playground import answer_with, ask, code_of, forget_chat, says
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def seeing(site: LiveServer) -> Iterator[str]:
    """The name of a model that the page takes for one that sees; nothing loads it."""
    made = site.manage(
        "from models_registry.models import Checkpoint; import uuid;"
        "row = Checkpoint.objects.get(served_model_name='demo'); row.pk = row.id = uuid.uuid4();"
        "row.served_model_name = 'seeing'; row.path = '/nowhere/seeing';"
        "row.inspection['spec']['vision'] = {'kind': 'any'};"
        "row.save(force_insert=True); print(row.pk)"
    ).strip()
    yield "seeing"
    site.manage(f"from models_registry.models import Checkpoint; Checkpoint.objects.filter(pk={made!r}).delete()")


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
