"""Tokenizer, tensors, layers, revisions and comparison of models in Chromium, by mouse and by keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Error, Page, Route, expect

from tests.browser.actions import HOSTILE, assert_fits_and_can_be_read, second_revision
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser


@pytest.fixture
def other(site: LiveServer, tmp_path: Path) -> Iterator[str]:
    """A checkpoint like the demo's but for one tensor and a hostile token; both are revisions of ``best``."""
    made = second_revision(site, tmp_path / "other")
    yield made
    site.manage(
        "from models_registry import aliases; from models_registry.models import Checkpoint;"
        f"aliases.alias_delete(name='best'); Checkpoint.objects.filter(pk={made!r}).delete()"
    )


def test_a_text_is_cut_while_typing(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/")
    page.click("nav >> text=Tokenizer")
    page.fill("#text", "a module\nand")
    expect(page.locator("#token-count")).to_contain_text("12 characters")
    expect(page.locator("#tokens bdi").first).to_have_text("a")
    assert page.locator("#tokens br").count() == 1
    page.fill("#vocabulary-search", "odule")
    expect(page.locator("#vocabulary tr").first).to_contain_text("odule")
    expect(page.locator("#vocabulary-count")).to_contain_text("1 to ")
    page.fill("#vocabulary-search", "0-3")
    expect(page.locator("#vocabulary tr").first).to_contain_text("<|endoftext|>")
    page.fill("#vocabulary-search", "")
    expect(page.locator("#vocabulary-count")).to_contain_text("1 to 50 of 1,024")
    page.locator("#vocabulary-next").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#vocabulary-count")).to_contain_text("51 to 100 of 1,024")


def test_the_longest_text_in_the_widest_characters(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/tokenizer/?text={quote('🙂' * 4000)}")
    expect(page.locator("#token-count")).to_contain_text("4,000 characters, 16,000 bytes")


def test_hostile_tokens_stay_text(page: Page, other: str) -> None:
    page.goto(f"/models/{other}/tokenizer/?special=1&text={quote(HOSTILE)}&q=onerror")
    expect(page.locator("#tokens bdi")).to_have_text(HOSTILE)
    expect(page.locator("#vocabulary tr")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0


def test_a_tensor_opens_and_is_read_by_keyboard(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=tensors&q=layers.2+router")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#open-tensor")).to_contain_text("Bytes of the file")
    opened = page.locator("#tensors a[aria-expanded=true]")
    expect(opened).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#read-values")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#figures")).to_contain_text("Standard deviation")
    expect(page.locator("#open-tensor svg rect")).to_have_count(48)
    opened.click()
    expect(page.locator("#open-tensor")).to_have_count(0)
    page.click("#as-tree")
    page.locator("#groups a").first.click()
    expect(page.locator("#tensor-region nav b")).to_be_visible()


def test_what_is_typed_replaces_what_a_click_has_asked_for(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=tensors")
    held: list[Route] = []

    def hold_a_tensor(route: Route) -> None:
        return held.append(route) if "&tensor=" in route.request.url else route.continue_()

    page.route("**/?tab=tensors*", hold_a_tensor)
    page.locator("#tensors a").first.click()
    wait_until(lambda: page.title() and held, 60, "the tensor")
    page.fill("#tensor-search", "layers.2 router")
    expect(page.locator("#tensors tr")).to_have_count(1)
    with suppress(Error):  # nobody waits for it any more
        held[0].continue_()
    page.wait_for_timeout(200)
    expect(page.locator("#tensors tr")).to_have_count(1)
    expect(page.locator("#open-tensor")).to_have_count(0)


def test_a_layer_filters_the_tensors(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=layers")
    page.click("#by-bytes")
    expect(page.locator("#by-bytes")).to_have_attribute("aria-current", "true")
    before = page.locator(".ribbon-map").bounding_box()
    page.click("#zoom-in")
    expect(page.locator(".ribbon-map")).to_have_attribute("width", "200%")
    expect(page.locator("#zoom-in")).to_be_focused()
    assert page.locator(".ribbon-map").bounding_box()["width"] == pytest.approx(2 * before["width"], abs=2)
    page.locator("#ribbon-2").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#chosen-title")).to_contain_text("Layer 2: ")
    names = page.locator("#tensors td:first-child").all_inner_texts()
    assert names and all("layers.2." in name for name in names)
    page.locator("#tensors a").first.click()
    expect(page.locator("#open-tensor")).to_contain_text("Becomes")


def test_share_of_compute_follows_the_context(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=layers&layer=4")
    page.click("#by-compute")
    expect(page.locator("#context")).to_have_value("1024")
    ribbon = page.get_by_role("group", name="Ribbon of the layers")
    wide = ribbon.locator("#ribbon-4 rect").first.get_attribute("width")
    page.fill("#context", "7")
    page.keyboard.press("Enter")
    expect(page.locator("#ribbon-region")).to_contain_text("multiply-adds of a token that sees 7")
    assert float(ribbon.locator("#ribbon-4 rect").first.get_attribute("width")) < float(wide)  # less attention
    page.click("#zoom-in")
    expect(page.locator("#context")).to_have_value("7")
    expect(page.locator("#chosen-title")).to_contain_text("Layer 4: ")


def test_two_ticked_models_are_compared(page: Page, site: LiveServer, other: str) -> None:
    page.goto("/models/")
    page.check(f"#pick-{site.checkpoint_id('demo')}")
    page.check(f"#pick-{other}")
    page.evaluate("document.body.dispatchEvent(new CustomEvent('live:models'))")
    page.wait_for_timeout(500)
    expect(page.locator(f"#pick-{other}")).to_be_checked()
    page.click("#compare-button")
    expect(page.locator("h1")).to_have_text("Compare")
    expect(page.locator("main")).to_contain_text("have the same name, type and shape")
    page.click("#swap")
    expect(page.locator("#a")).to_have_value(other)


def test_what_changed_between_revisions(page: Page, other: str) -> None:
    page.goto(f"/models/{other}/?tab=revisions")
    expect(page.locator("main")).to_contain_text("best@1")
    page.click("text=Read both")
    expect(page.locator("#changes-region")).to_contain_text("1 tensor changed since demo")
    expect(page.locator("#changed td").first).to_have_text("1")
    page.goto(f"/models/{other}/?tab=revisions")
    page.click("text=What changed >> nth=0")
    expect(page.locator("#changes-region")).to_contain_text("layer 2")


@pytest.mark.parametrize("width", [360, 1440])
def test_the_tabs_fit_and_axe_finds_nothing_when_they_are_full(
    open_page: Callable[..., Page], site: LiveServer, other: str, width: int
) -> None:
    demo = site.checkpoint_id("demo")
    page = open_page(width)
    tensor = "?tab=tensors&q=router&figures=1&tensor="
    page.goto(f"/models/{demo}/?tab=tensors&q=router")
    tensor += page.locator("#tensors a").first.inner_text()
    for path in (
        f"/models/{demo}/{tensor}",
        f"/models/{demo}/?tab=tensors&prefix=.",
        f"/models/{demo}/?tab=layers&by=bytes&zoom=2&layer=2",
        f"/models/{demo}/?tab=layers&by=compute&layer=2",
        f"/models/{other}/?tab=revisions&from={demo}",
        f"/models/compare/?a={demo}&b={other}",
        "/models/compare/",
        f"/models/{other}/tokenizer/?special=1&text={quote(HOSTILE)}",
        "/models/",
    ):
        page.goto(path)
        assert_fits_and_can_be_read(page, with_axe=True)
