"""Accounts, and the drawers of accounts and keys, in Chromium: by keyboard, narrow, without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.actions import assert_fits_and_can_be_read
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser

PASSWORD = "rotation-curve"
TEAR_DOWN = """
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from inference.models import ApiKey
User.objects.filter(username__in=("vera", "nora")).delete()
LogEntry.objects.all().delete()
ApiKey.objects.filter(name="from a drawer").delete()
"""


REFUSED = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
"""A refused form in the browser's words."""


@pytest.fixture(autouse=True)
def cleaned(site: LiveServer) -> Iterator[None]:
    yield
    site.manage(TEAR_DOWN)


def assert_drawer_fits(page: Page, selector: str) -> None:
    """It stands at the right edge over the whole height; nothing in it is cut."""
    assert_fits_and_can_be_read(page, with_axe=True)
    drawer = page.locator(selector)
    box = drawer.bounding_box()
    size = page.viewport_size
    assert box and size
    assert (box["y"], box["height"], box["x"] + box["width"]) == (0, size["height"], size["width"])
    assert drawer.evaluate("(element) => element.scrollWidth - element.clientWidth") <= 0


@pytest.mark.parametrize("width", [360, 1440])
def test_an_account_is_added_changed_and_deleted(
    open_page: Callable[..., Page], site: LiveServer, complaints: Complaints, chromium: Browser, width: int
) -> None:
    page = open_page(width)
    complaints.watch(page)
    add_by_keyboard(page)
    page.locator("input[name=role][value=operator]").check()
    page.click("#set-role")
    expect(page.locator("#log")).to_contain_text("Role: viewer → operator.")
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    page.dblclick("#set-password")
    made = page.locator("#made-password").inner_text()
    assert len(posts) == 1  # the password of a second one would count, and this one be shown
    assert_fits_and_can_be_read(page, with_axe=True)
    page.goto("/settings/accounts/")
    page.get_by_role("link", name="vera").click()
    own = chromium.new_page(base_url=site.url)
    own.goto("/login/")
    own.fill("#id_username", "vera")
    own.fill("#id_password", made)
    own.click("button:has-text('Sign in')")
    expect(own.locator("h1")).to_have_text("Overview")
    page.click("#sign-in")
    expect(page.locator("#state")).to_contain_text("may not sign in")
    expect(own.locator("#notices")).to_contain_text("Your session has ended")
    own.goto("/models/")
    expect(own.locator("#id_username")).to_be_visible()
    own.context.close()
    page.click("#delete")
    page.locator("dialog button", has_text="Delete").click()
    expect(page.locator("h1")).to_have_text("Accounts")
    expect(page.locator("#accounts")).not_to_contain_text("vera")
    expect(page.locator("#log")).to_contain_text("Deleted; its usage stays")
    assert complaints == [REFUSED]


def add_by_keyboard(page: Page) -> None:
    """Add the account vera with the keyboard alone, with a mistake at first; ends on its page."""
    page.goto("/settings/accounts/")
    opener, drawer, name = page.locator("#new"), page.locator("#new-account"), page.locator("#name")
    expect(drawer).to_be_hidden()
    opener.focus()
    page.keyboard.press("Enter")
    expect(name).to_be_focused()
    assert_drawer_fits(page, "#new-account")
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("vera")
    page.keyboard.press("Tab")  # to the role that is chosen
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("#form-error")).to_have_text("The two passwords differ.")
    expect(name).to_have_value("vera")
    expect(name).to_be_focused()
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()  # which hadn't opened it here
    page.keyboard.press("Enter")
    expect(name).to_have_value("vera")
    assert_drawer_fits(page, "#new-account")
    page.fill("#password", PASSWORD)
    page.fill("#again", PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("vera")
    expect(page.locator("#state")).to_contain_text("viewer; may sign in")
    assert_fits_and_can_be_read(page, with_axe=True)


def test_accounts_are_changed_without_scripts(chromium: Browser, site: LiveServer, session_state: dict) -> None:
    context = chromium.new_context(base_url=site.url, storage_state=session_state, java_script_enabled=False)
    page = context.new_page()
    page.goto("/settings/")
    page.click("#tab-accounts")
    page.click("#new")
    page.fill("#name", "nora")
    page.click("#make")
    expect(page.locator("#made-password")).to_be_visible()
    page.click("#sign-in")
    expect(page.locator("#state")).to_contain_text("member; may not sign in")
    page.click("#delete")
    expect(page.locator("#accounts")).not_to_contain_text("nora")
    page.goto("/keys/")
    page.click("#new")
    page.fill("#key-name", "from a drawer")
    page.click("#make")
    expect(page.locator("#key")).to_contain_text("blazr_")
    page.goto("/keys/?new=1")
    page.locator("#new-key").get_by_role("button", name="Close").click()
    expect(page.locator("#new-key")).to_be_hidden()
    context.close()


@pytest.mark.parametrize("width", [360, 1440])
def test_a_key_is_made_in_a_drawer(
    open_page: Callable[..., Page], site: LiveServer, complaints: Complaints, width: int
) -> None:
    page = open_page(width)
    complaints.watch(page)
    page.goto("/keys/")
    page.click("#new")
    expect(page.locator("#key-name")).to_be_focused()
    assert_drawer_fits(page, "#new-key")
    page.keyboard.press("Escape")
    expect(page.locator("#new-key")).to_be_hidden()
    expect(page.locator("#new")).to_be_focused()
    page.keyboard.press("Enter")
    page.fill("#key-name", "from a drawer")
    for box in page.locator("#new-key input[name=scopes]").all():
        box.uncheck()
    page.click("#make")
    expect(page.locator("#form-error")).to_be_visible()
    expect(page.locator("#key-name")).to_have_value("from a drawer")
    assert_drawer_fits(page, "#new-key")
    page.locator("#new-key input[name=scopes]").first.check()
    page.click("#make")
    expect(page.locator("#key")).to_contain_text("blazr_")
    # The palette opens it too, and its address.
    page.goto("/keys/?new=1")
    expect(page.locator("#key-name")).to_be_focused()
    page.locator("#new-key").get_by_role("button", name="Close").click()
    expect(page.locator("#new")).to_be_focused()
    page.keyboard.press("Control+k")
    page.keyboard.type("new api key")
    page.keyboard.press("Enter")
    expect(page.locator("#key-name")).to_be_focused()
    assert complaints == [REFUSED]
