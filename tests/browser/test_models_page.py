"""The list of models while the server draws it anew, and the head of a model's page while it is scrolled."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import assert_fits_and_can_be_read, row_like_demo
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser
DRAW = "document.body.dispatchEvent(new CustomEvent('live:models'))"


def test_sorting_filters_and_ticks_outlive_a_live_update(
    page: Page, open_page: Callable[..., Page], site: LiveServer
) -> None:
    small = "row.size_bytes = 7; row.inspection['spec']['layers'] = row.inspection['spec']['layers'][:1];"
    with row_like_demo(site, "demo-small", small), row_like_demo(site, "demo-large", "row.size_bytes = 1 << 40;"):
        names = page.locator("#models tbody .name-link")
        page.goto("/models/")
        expect(page.get_by_role("img", name="1 layer: 1 mamba2")).to_be_visible()
        page.check("[aria-label='Compare demo-large']")
        page.click("#sort-size")
        expect(names).to_have_text(["demo-large", "demo", "demo-small"])
        expect(page.locator("#sort-size")).to_be_focused()
        page.keyboard.press("Enter")
        expect(names).to_have_text(["demo-small", "demo", "demo-large"])
        expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "ascending")
        page.select_option("#layers", "mixed")
        expect(names).to_have_text(["demo", "demo-large"])
        expect(page).to_have_url(re.compile(r"sort=size.*layers=mixed|layers=mixed.*sort=size"))
        for draw in (DRAW, ""):  # as the server has it drawn, then as a reload does
            page.evaluate("document.querySelector('#models tbody').dataset.old = '1'")
            page.evaluate(draw) if draw else page.reload()
            expect(page.locator("#models tbody[data-old]")).to_have_count(0)
            expect(names).to_have_text(["demo", "demo-large"])
            expect(page.get_by_label("Compare demo-large")).to_be_checked(checked=bool(draw))
        narrow = open_page(360)
        narrow.goto("/models/?layers=mixed")
        narrow.click("#by-size")
        expect(narrow.locator("#models tbody .name-link")).to_have_text(["demo-large", "demo"])
        assert_fits_and_can_be_read(narrow, with_axe=True)


def test_ticks_count_for_rows_that_are_not_shown(page: Page, site: LiveServer) -> None:
    with row_like_demo(site, "demo-small") as small, row_like_demo(site, "demo-large") as large:
        page.goto("/models/")
        page.check("[aria-label='Compare demo-large']")
        page.fill("#search", "demo-small")
        expect(page.locator("#models tbody .name-link")).to_have_text(["demo-small"])
        page.check("[aria-label='Compare demo-small']")
        page.click("#compare-button")
        expect(page.locator("h1")).to_have_text("Compare")
        assert {page.locator(f"#{name}").input_value() for name in "ab"} == {small, large}


def test_pages_of_the_list_are_drawn_in_place(page: Page, site: LiveServer) -> None:
    made = site.manage(
        "from models_registry.models import Checkpoint; import uuid;"
        "row = Checkpoint.objects.get(served_model_name='demo'); names = [f'page-{n:02}' for n in range(60)];"
        "[(setattr(row, 'pk', uuid.uuid4()), setattr(row, 'id', row.pk), setattr(row, 'served_model_name', name),"
        " setattr(row, 'path', f'/nowhere/{row.pk}'), row.save(force_insert=True)) for name in names];"
        "print(len(names))"
    )
    try:
        assert made.strip() == "60"
        names = page.locator("#models tbody .name-link")
        page.goto("/models/?q=page")
        expect(names).to_have_count(50)
        page.check("[aria-label='Compare page-03']")
        page.keyboard.press("j")  # also from a tick
        expect(page.locator("#models tbody .name-link").nth(4)).to_be_focused()
        page.evaluate("window.isSame = true")
        page.locator("h1").click()
        page.keyboard.press("k")
        expect(page.locator("#models-next")).to_be_focused()
        page.keyboard.press("Enter")
        expect(names).to_have_text([f"page-{number:02}" for number in range(50, 60)])
        expect(page.locator("#found-now")).to_have_text(re.compile("^60 of .* models, 51 to 60$"))
        assert page.evaluate("window.isSame") and page.evaluate("scrollY") == 0
        page.click("#models-back")
        expect(page.get_by_label("Compare page-03")).to_be_checked()
        page.click("#models-next")
        expect(names).to_have_count(10)
        page.fill("#search", "page-0")  # other filters begin with their first row
        expect(names).to_have_text([f"page-{number:02}" for number in range(10)])
    finally:
        site.manage(
            "from models_registry.models import Checkpoint;"
            "Checkpoint.objects.filter(served_model_name__startswith='page-').delete()"
        )


@pytest.mark.parametrize(("width", "most"), [(360, 64), (1440, 100)])
def test_the_head_of_a_model_stays_and_covers_nothing(
    open_page: Callable[..., Page], site: LiveServer, width: int, most: int
) -> None:
    page = open_page(width)
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=tensors")
    head, bar = page.locator(".model-head"), page.locator(".topbar")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(head).to_be_in_viewport(ratio=1)
    expect(head.get_by_role("img")).to_have_attribute("aria-label", re.compile("^6 layers: "))
    box, above = head.bounding_box(), bar.bounding_box()
    assert box["height"] <= most and box["y"] >= max(0, above["y"] + above["height"]) - 1
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    # What the keyboard reaches is scrolled to a place below the head.
    page.locator("#tensor-search").focus()
    assert page.locator("#tensor-search").bounding_box()["y"] >= head.bounding_box()["y"] + box["height"]
    page.goto(f"/models/{site.checkpoint_id('demo')}/usage/")
    assert_fits_and_can_be_read(page, with_axe=True)
