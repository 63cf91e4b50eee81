"""Measuring a model's memory on its page in Chromium: started, followed, cancelled, looked at, downloaded, deleted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.actions import HOSTILE, assert_job_card_fits, children_of, held_child
from tests.browser.conftest import Complaints, NewFiles
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser

CHILD = "blazr_site.span_child"


@pytest.fixture(autouse=True)
def no_measurements(site: LiveServer) -> Iterator[None]:
    yield
    site.manage("from models_registry.models import *; SpanMeasurement.objects.all().delete()")


def open_dialog(page: Page, site: LiveServer) -> None:
    """With the keyboard alone."""
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=memory")
    page.focus("#inspect")
    page.keyboard.press("Enter")
    expect(page.locator("#span-text")).to_be_focused()


def fill(page: Page, text: str, *, tokens: int, seconds: int = 300) -> None:
    """Type into the focused field and those that the Tab key leads to, and start."""
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)
    for value in (tokens, seconds):
        page.keyboard.press("Tab")
        page.keyboard.press("Control+A")
        page.keyboard.type(str(value))
    page.keyboard.press("Enter")


def newest(page: Page):
    return page.locator("#spans > li").first


def test_read_follow_look_download_delete(page: Page, site: LiveServer, new_files: NewFiles) -> None:
    open_dialog(page, site)
    fill(page, "The statement is executed. " * 40, tokens=64)
    child = held_child(site, CHILD)
    expect(newest(page).locator("progress")).to_be_visible()
    os.kill(child, signal.SIGCONT)
    expect(page.locator("#toasts")).to_contain_text("The text was read", timeout=90_000)
    item = newest(page)
    expect(item.locator("summary")).to_contain_text("64 tokens")
    expect(item).to_contain_text("“The statement is executed.")
    picture = item.locator("img")
    picture.scroll_into_view_if_needed()
    wait_until(lambda: picture.evaluate("(image) => image.complete && image.naturalWidth > 0"), 60, "the picture")
    assert item.locator("tbody tr").nth(2).inner_text().split()[:6] == ["2", "mla", "mean", "attended", "distance", "5"]
    expect(item.locator("tbody tr")).to_have_count(6)
    found = {}
    for name in ("Figures (JSON)", "Picture (SVG)"):
        with page.expect_download() as download:
            item.get_by_role("link", name=name).click()
        found[download.value.suggested_filename] = Path(download.value.path()).read_text()
    assert json.loads(found["demo-memory.json"])["tokens"] == 64
    assert ElementTree.fromstring(found["demo-memory.svg"]).tag.endswith("svg")
    page.reload()
    newest(page).get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(newest(page)).to_have_text("Nothing was measured yet.")
    expect(page.locator("#inspect")).to_be_focused()
    wait_until(lambda: not new_files("uploads"), 60, "the cleaning up")


def test_cancelling_ends_the_process(page: Page, site: LiveServer) -> None:
    open_dialog(page, site)
    fill(page, "The statement is executed. " * 400, tokens=1024)
    child = held_child(site, CHILD)
    newest(page).get_by_role("button", name="Cancel").focus()
    page.keyboard.press("Enter")
    os.kill(child, signal.SIGCONT)
    expect(newest(page)).to_contain_text("cancelled by admin")
    wait_until(lambda: not children_of(site, CHILD), 60, "the end of the process")


def test_time_is_over_for_a_process_that_hangs(page: Page, site: LiveServer) -> None:
    open_dialog(page, site)
    fill(page, "The statement is executed. " * 400, tokens=1024, seconds=2)
    child = held_child(site, CHILD)
    expect(newest(page)).to_contain_text("it took longer than 2 s and was ended", timeout=60_000)
    expect(page.locator("#toasts")).to_contain_text("it took longer than 2 s")
    wait_until(lambda: child not in children_of(site, CHILD), 60, "the end of the process")


def test_what_is_refused_is_explained(page: Page, site: LiveServer, complaints: Complaints) -> None:
    open_dialog(page, site)
    page.fill("#span-text", "ä" * 20_000)
    page.keyboard.press("Tab")
    page.click("#inspect-form button:has-text('Start')")
    assert page.locator("#span-text").evaluate("(field) => field.validationMessage") == (
        "The text has 40,000 bytes; at most 32,768 are read."
    )
    page.fill("#span-text", "   ")
    page.click("#inspect-form button:has-text('Start')")
    expect(page.locator("#inspect-error")).to_contain_text("text is empty; give some words")
    page.fill("#span-text", "a")
    page.click("#inspect-form button:has-text('Start')")
    expect(newest(page)).to_contain_text("the text has 1 tokens; 2 to 4096 can be inspected", timeout=60_000)
    complaints[:] = [text for text in complaints if "400" not in text]


@pytest.fixture
def rows_of_each_state(site: LiveServer) -> None:
    site.manage(
        "from models_registry.models import *; from django.utils import timezone;"
        "from inference.llm.memory_span.spans import *; from inference.llm.memory_span.picture import draw;"
        "source = Checkpoint.objects.get(served_model_name='demo');"
        f"text = {HOSTILE!r} + 'x' * 80; head = HeadSpan(5.0, 2.0, 900.0, 1.5, (1.0, 1.5));"
        "picture = draw([MixerSpan(0, 'mamba2', (head,) * 12)], model=text, num_tokens=900);"
        "line = dict.fromkeys(('layer', 'kind', 'what', 'heads', 'least', 'median', 'most', 'state_norm'), '1,234');"
        "[SpanMeasurement.objects.create(source=source, source_name='demo', max_tokens=4096, max_seconds=3600,"
        " progress=0.4, stage=text, state=state, reason=text if state != 'running' else '', text=text * 3,"
        " num_tokens=900, table=[{**line, 'kind': text}, line], picture=picture, figures='{}',"
        " active_at=timezone.now()) for state in ('failed', 'cancelled', 'running', 'done')]"
    )


@pytest.mark.usefixtures("rows_of_each_state")
def test_dialog_and_rows_fit_and_can_be_read(page: Page, site: LiveServer) -> None:
    assert_job_card_fits(page, site, rows="#spans", button="#inspect", num_images=1, tab="memory")


@pytest.mark.usefixtures("rows_of_each_state")
def test_pictures_follow_the_chosen_scheme(page: Page, site: LiveServer) -> None:
    """The button's choice, against the system's."""
    page.emulate_media(color_scheme="light")
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=memory")
    picture = page.locator("#spans img")
    picture.scroll_into_view_if_needed()
    wait_until(lambda: picture.evaluate("(image) => image.complete && image.naturalWidth > 0"), 60, "the picture")
    light = picture.screenshot()
    page.click("[data-theme-toggle]")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    picture.scroll_into_view_if_needed()
    wait_until(lambda: picture.screenshot() != light, 60, "another picture")
    page.click("[data-theme-toggle]")


@pytest.mark.usefixtures("rows_of_each_state")
def test_the_result_is_there_without_scripts(chromium: Browser, site: LiveServer, session_state: dict) -> None:
    context = chromium.new_context(base_url=site.url, storage_state=session_state, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=memory")
    item = newest(page)
    expect(item.locator("tbody tr")).to_have_count(2)
    expect(item.locator("img")).to_be_visible()
    expect(item.locator("table")).to_be_visible()
    expect(item.get_by_role("link", name="Figures (JSON)")).to_be_visible()
    context.close()
