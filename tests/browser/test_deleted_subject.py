"""A page whose model is deleted while it is looked at, by its reader or by somebody else, in Chromium."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.actions import DEMO
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser

NEXT_PAGE_SECONDS = 1.5
"""Long enough for the news of the deletion to come before the page has gone."""


@pytest.fixture
def doomed(site: LiveServer, tmp_path: Path) -> str:
    """The id of a model that nobody else needs."""
    place = shutil.copytree(DEMO, tmp_path / "doomed")
    site.register(place, "doomed")
    return site.checkpoint_id("doomed")


def test_the_news_of_its_own_deletion_draws_nothing_again(page: Page, doomed: str) -> None:
    """The ``page`` fixture fails when a request of the page was answered with 404."""

    def come_late(route: Route) -> None:
        time.sleep(NEXT_PAGE_SECONDS)
        route.continue_()

    page.route("**/models/", come_late)
    page.goto(f"/models/{doomed}/?tab=settings")
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    page.wait_for_url("**/models/")
    expect(page.get_by_role("link", name="doomed")).to_have_count(0)


def test_what_was_being_drawn_as_the_page_was_deleted_is_broken_off(page: Page, doomed: str) -> None:
    """Answered later than the deletion, it would be a request that failed."""
    held: dict[str, list[Route]] = {"GET": [], "DELETE": []}
    page.goto(f"/models/{doomed}/?tab=settings")
    page.route(re.compile(doomed), lambda route: held[route.request.method].append(route))
    for _ in range(2):  # the second is queued behind the first
        page.evaluate("document.body.dispatchEvent(new CustomEvent('live:models'))")
    expect(page.locator(".htmx-request")).not_to_have_count(0)
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    expect(page.locator(".htmx-request")).to_have_count(0, timeout=10_000)
    asked = len(held["GET"])
    held["DELETE"][0].continue_()
    page.wait_for_url("**/models/")
    assert 0 < asked == len(held["GET"])


def test_a_deletion_by_somebody_else_is_said_and_the_page_stays(
    open_page: Callable[..., Page], site: LiveServer, doomed: str
) -> None:
    page = open_page(1280)
    page.goto(f"/models/{doomed}/?tab=settings")
    site.manage(f"from models_registry.models import Checkpoint; Checkpoint.objects.get(pk={doomed!r}).delete()")
    page.evaluate("document.body.dispatchEvent(new CustomEvent('live:models'))")
    expect(page.locator("#notices")).to_contain_text("What this page shows has been deleted.")
    expect(page.locator("h1")).to_have_text("doomed")
