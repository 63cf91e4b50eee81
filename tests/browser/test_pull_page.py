"""Pulls from a hub in Chromium: looked up, followed on every page, cancelled, gone on with, refused in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.actions import HOSTILE, axe_findings, delete
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer, wait_until
from tests.models_registry.gguf_content import llama_gguf
from tests.models_registry.tiny_hub import Hub

pytestmark = pytest.mark.browser


@pytest.fixture
def tiny(site: LiveServer, hub: tuple[str, type[Hub]]) -> Iterator[type[Hub]]:
    """The hub as it was at first, with nothing of it in the server's cache."""
    handler = hub[1]
    files = dict(handler.files)
    shutil.rmtree(site.data_dir.with_name("hub"), ignore_errors=True)
    handler.asked.clear()
    yield handler
    handler.files, handler.is_broken = files, False
    handler.gate.set()


def pull_row(page: Page) -> Locator:
    return page.locator("#pulls li", has_text="org/tiny")


def test_a_model_is_found_looked_at_and_pulled_with_the_keyboard(page: Page, site: LiveServer, tiny: type[Hub]) -> None:
    tiny.gate.clear()
    page.goto("/models/upload/")
    page.locator("#hub-model").focus()
    page.keyboard.type("tiny")
    page.keyboard.press("Enter")
    expect(page.locator("#hub-found h3")).to_be_focused()
    expect(page.locator("#hub-found li", has_text="org/tiny-pickle")).to_contain_text("can't be pulled")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#hub-found h3")).to_have_text("org/tiny")
    expect(page.locator("#hub-found h3")).to_be_focused()
    for words in ("To fetch", "apache-2.0", "free on the cache's disk", "of weights fit into"):
        expect(page.locator("#hub-found")).to_contain_text(words)
    assert set(tiny.asked) == {"config.json"}
    while page.evaluate("document.activeElement.id") != "pull-name":
        page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("pulled")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("The pull of org/tiny has begun")
    expect(pull_row(page)).to_contain_text("model.safetensors")
    expect(page.locator("#transfers")).to_contain_text("org/tiny: ")
    page.goto("/jobs/")
    expect(page.locator("#transfers")).to_contain_text("org/tiny: ")
    page.locator("#transfers").click()
    expect(pull_row(page)).to_contain_text("fetching")
    tiny.gate.set()
    expect(pull_row(page)).to_contain_text("done")
    expect(page.locator("#transfers")).to_be_hidden()
    pull_row(page).get_by_role("link", name="Look at pulled").click()
    expect(page.locator("h1")).to_have_text("pulled")
    delete(page, site, "pulled")


def test_a_gguf_file_is_chosen_and_pulled(page: Page, site: LiveServer, tiny: type[Hub]) -> None:
    tiny.files = {"T-Q4_K_M.gguf": llama_gguf(), "T-Q8_0.gguf": llama_gguf(seed=2), "mmproj-T.gguf": b"no"}
    page.goto("/models/upload/?pull=org/tiny")
    page.click("#hub-look-up")
    options = page.locator("#hub-options tbody tr")
    expect(options).to_have_count(2)
    expect(options.filter(has_text="Q4_K_M")).to_contain_text("chosen")
    expect(page.locator("#hub-checks")).to_contain_text("Ignored, as they are no models: mmproj-T.gguf")
    assert axe_findings(page) == []
    page.get_by_role("button", name="T-Q8_0.gguf").click()
    expect(page.locator("#hub-found h3")).to_have_text("org/tiny:Q8_0")
    expect(options.filter(has_text="Q8_0")).to_contain_text("chosen")
    expect(page.locator("#pull-name")).to_have_value("tiny-Q8_0")
    assert tiny.asked == []
    page.click("#pull-form >> text=Pull")
    expect(pull_row(page).filter(has_text="org/tiny:Q8_0")).to_contain_text("done")
    assert tiny.asked == ["T-Q8_0.gguf"]
    delete(page, site, "tiny-Q8_0")


def test_a_pull_that_broke_off_or_was_cancelled_goes_on(page: Page, site: LiveServer, tiny: type[Hub]) -> None:
    tiny.is_broken = True
    page.goto("/models/upload/?pull=org/tiny")
    expect(page.locator("#hub-look-up")).to_be_focused()
    assert tiny.asked == []  # a link alone asks no hub
    page.keyboard.press("Enter")
    page.click("#pull-form >> text=Pull")
    expect(pull_row(page)).to_contain_text("could not be fetched (it answered 503); pull it again")
    tiny.is_broken = False
    tiny.gate.clear()
    pull_row(page).get_by_role("button", name="Go on").click()
    wait_until(lambda: "model.safetensors" in tiny.asked, 60, "the download of the weights")
    expect(pull_row(page)).to_contain_text("model.safetensors")
    pull_row(page).get_by_role("button", name="Cancel").click()
    expect(pull_row(page)).to_contain_text("cancelled")
    tiny.gate.set()
    pull_row(page).get_by_role("button", name="Go on").click()
    expect(pull_row(page)).to_contain_text("done")
    name = pull_row(page).get_by_role("link").inner_text().removeprefix("Look at ")
    delete(page, site, name)


def test_what_cannot_be_pulled_is_said(
    chromium: Browser, session_state: dict, site: LiveServer, tiny: type[Hub]
) -> None:
    complaints = Complaints()
    tiny.files["config.json"] = json.dumps({"model_type": HOSTILE}).encode()
    context = chromium.new_context(
        base_url=site.url, storage_state=session_state, color_scheme="dark", reduced_motion="reduce", bypass_csp=True,
        viewport={"width": 360, "height": 844},
    )  # fmt: skip
    page = context.new_page()
    complaints.watch(page)
    page.goto("/models/upload/?pull=org/tiny")
    page.click("#hub-look-up")
    expect(page.locator("#hub-checks")).to_contain_text(f"It would be refused: model_type '{HOSTILE}' is not supported")
    expect(page.locator("#pull-form")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert axe_findings(page) == []
    assert complaints == []
    page.fill("#hub-model", "org/none")
    page.click("#hub-look-up")
    expect(page.locator("#hub-problem")).to_contain_text("the hub has no model org/none")
    assert tiny.asked == ["config.json"]
    context.close()
