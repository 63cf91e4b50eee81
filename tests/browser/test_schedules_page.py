"""Schedules in Chromium: the form with its preview, a run by hand, pause, deletion; what axe says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import HOSTILE, assert_fits_and_can_be_read
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer
from tests.live.test_batches import lines_of, start

pytestmark = pytest.mark.browser


def test_a_batch_is_put_on_a_schedule_and_run(
    open_page: Callable[..., Page], site: LiveServer, complaints: Complaints
) -> None:
    page = open_page(360)
    complaints.watch(page)
    fill_and_make(page, site)
    page.click("#run")
    expect(page.locator("#runs")).to_contain_text("started (by hand)")
    expect(page.locator("#runs")).to_contain_text("completed, 2 of 2 lines")  # drawn again by itself
    assert_fits_and_can_be_read(page, with_axe=True)
    page.locator("#runs a").click()
    page.click("#schedule")
    change_pause_and_delete(page)
    assert complaints == []


def fill_and_make(page: Page, site: LiveServer) -> None:
    """Fill the form in from a batch's page, with a mistake at first, and create the schedule."""
    batch = start(site, lines_of(2))
    page.goto(f"/batches/{batch}/")
    page.click("#on-schedule")
    expect(page.locator("#time_zone")).not_to_have_value("")
    page.fill("#name", HOSTILE)
    page.fill("#cron", "*/2 * * * *")
    expect(page.locator("#preview-error")).to_contain_text("at least 5 minutes")
    page.fill("#cron", "30 2 * * 0")
    page.fill("#time_zone", "Europe/Berlin")
    expect(page.locator("#preview-words")).to_have_text("every Sunday at 02:30 Europe/Berlin")
    expect(page.locator("#preview-times li")).to_have_count(5)
    assert_fits_and_can_be_read(page, with_axe=True)
    page.click("#make")
    expect(page.locator("h1")).to_have_text(HOSTILE)


def change_pause_and_delete(page: Page) -> None:
    """Change the schedule on its page with the keyboard, pause it in the list, and delete it."""
    page.locator("#change > summary").focus()
    page.keyboard.press("Enter")
    page.select_option("#action", "load")
    expect(page.locator("#file")).to_be_hidden()
    page.select_option("#model", "demo")
    page.locator("#save").press("Enter")
    expect(page.locator("#schedule-region")).to_contain_text("load demo")
    page.click("#up")
    row = page.locator("#schedules tbody tr").filter(has_text=HOSTILE)
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    assert_fits_and_can_be_read(page, with_axe=True)
    row.get_by_role("link").first.click()
    page.click("#delete")
    page.locator("dialog button", has_text="Delete").click()
    expect(page.locator("main")).to_contain_text("No schedules yet.")
