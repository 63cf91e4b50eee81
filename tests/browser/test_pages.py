"""Every page in Chromium: what it does, by mouse and by keyboard, and how it looks at both ends of the sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Error, Page, Route, expect

from tests.browser.actions import HOSTILE, assert_fits_and_can_be_read, await_loaded
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser


# --- the door ----------------------------------------------------------------------------------


def test_a_wrong_password_is_said(chromium: Browser, site: LiveServer) -> None:
    page = chromium.new_page(base_url=site.url)
    page.goto("/")
    expect(page).to_have_url(re.compile(r"/login/\?next=/$"))
    page.fill("#id_username", "admin")
    page.fill("#id_password", "wrong")
    page.click("button:has-text('Sign in')")
    expect(page.locator("[role=alert]")).to_contain_text("Please enter the correct username and password")
    page.context.close()


def test_signing_out(chromium: Browser, site: LiveServer, session_state: dict) -> None:
    context = chromium.new_context(base_url=site.url, storage_state=session_state)
    page = context.new_page()
    page.goto("/")
    cookies = [cookie for cookie in context.cookies() if cookie["name"] == "sessionid"]
    assert cookies[0]["httpOnly"]
    # A copy of the session would end with it: sign out of one of our own.
    password = (site.data_dir / "admin_password").read_text().strip()
    context.clear_cookies()
    page.goto("/login/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", password)
    page.click("button:has-text('Sign in')")
    page.click("button:has-text('Sign out')")
    expect(page).to_have_url(re.compile("/login/"))
    page.goto("/jobs/")
    expect(page).to_have_url(re.compile("/login/"))
    context.close()


TABS = (
    "overview", "layers", "tensors", "revisions", "memory", "template", "facts", "adapters", "passport", "settings",
)  # fmt: skip


def paths(site: LiveServer) -> list[str]:
    """Every page, and every tab of a model's."""
    key = site.checkpoint_id("demo")
    model = f"/models/{key}/"
    fixed = (
        "/",
        "/models/",
        "/models/upload/",
        "/runs/",
        "/playground/",
        "/jobs/",
        "/schedules/",
        "/requests/",
        "/keys/",
        "/keys/?new=1",
        "/settings/",
        "/settings/accounts/",
        "/settings/accounts/?new=1",
        "/settings/accounts/1/",
    )
    return [
        *fixed,
        *(f"{model}?tab={tab}" for tab in TABS),
        f"{model}tokenizer/",
        f"{model}usage/",
        f"/models/compare/?a={key}&b={key}",
        "/nowhere",
        "/docs",
    ]


# --- looks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 1440])
def test_pages_fit_and_can_be_read(
    open_page: Callable[..., Page], site: LiveServer, complaints: Complaints, width: int
) -> None:
    page = open_page(width, bypass_csp=False)
    complaints.watch(page)
    for path in paths(site):
        page.goto(path)
        assert_fits_and_can_be_read(page)
        unnamed = page.locator("button, a, input:not([hidden]):not([type=hidden]), select, textarea").evaluate_all(
            "(all) => all.filter((e) => e.checkVisibility() && !(e.innerText || e.getAttribute('aria-label') || e.title"
            " || e.labels?.length)).map((e) => e.outerHTML)"
        )
        assert unnamed == [], path
    complaints[:] = [text for text in complaints if "404" not in text]  # of the page that isn't there
    assert complaints == []


def test_an_empty_region_takes_no_room(page: Page, site: LiveServer) -> None:
    for tab in ("overview", "tensors"):
        page.goto(f"/models/{site.checkpoint_id('demo')}/?tab={tab}")
        tabs, card = (page.locator(place).first.bounding_box() for place in ("main nav", "main .card"))
        assert card["y"] - (tabs["y"] + tabs["height"]) <= 20, tab


def test_a_long_cell_of_a_card_stands_below_its_label(page: Page, site: LiveServer) -> None:
    page.set_viewport_size({"width": 360, "height": 780})
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=facts")
    cell = page.locator("td[data-label=Evidence]").first
    assert cell.evaluate("(cell) => getComputedStyle(cell, '::before').display") == "block"


def test_the_theme_follows_the_system_until_chosen(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_title("Switch between light and dark").click()
    page.goto("/jobs/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_keyboard_reaches_everything_visibly(page: Page, site: LiveServer) -> None:
    await_loaded(site)  # a model that is being loaded has no button
    page.goto("/models/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate_handle("document.activeElement")
        outline = focused.evaluate("(element) => getComputedStyle(element).outlineStyle")
        key = focused.evaluate("(element) => element.outerHTML.slice(0, 400)")
        if key.startswith("<body"):
            break
        assert outline != "none", key
        seen.add(key)
    assert any("search" in key for key in seen)
    assert any("Unload demo" in key or "Load demo" in key for key in seen)


# --- dashboard and models ------------------------------------------------------------------------


def test_the_dashboard_shows_what_is_alive(page: Page, site: LiveServer) -> None:
    await_loaded(site)
    page.goto("/")
    expect(page.locator("#models")).to_contain_text("demo")
    expect(page.locator("#models")).to_contain_text("ready")
    expect(page.locator("#workers")).to_contain_text("alive")
    expect(page.locator("#gauges")).to_contain_text("of 1 registered")


def test_searching_models(page: Page) -> None:
    page.goto("/models/")
    page.fill("#search", "mla mamba2")
    expect(page.locator("#models tbody tr")).to_have_count(1)
    page.fill("#search", "transformer-xl")
    expect(page.locator("#models")).to_contain_text("No model matches")


def test_the_model_page(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/")
    layers = page.locator("#layer-map a")
    expect(layers).to_have_count(6)
    layers.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#layer-detail h3")).to_have_text("Layer 2: latent attention (MLA) + mixture of experts")
    expect(page.locator(".tooltip")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("#layer-detail h3")).to_contain_text("Layer 5")
    page.click("nav >> text=Tensors")
    page.fill("#tensor-search", "layers.2 router")
    expect(page.locator("#tensors tr")).to_have_count(1)
    page.fill("#tensor-search", "")
    expect(page.locator("#tensor-count")).to_contain_text("1 to 50 of 86")
    page.click("#tensors-next")
    expect(page.locator("#tensor-count")).to_contain_text("51 to 86 of 86")


def assert_sliders_ask(page: Page) -> None:
    """Move the memory tab's sliders by keyboard; the newest numbers win, however late older answers come."""
    fit, field = page.locator("#fit"), page.locator("#concurrency")
    slider = page.get_by_role("slider", name="Sequences at once")
    slider.focus()
    page.keyboard.press("Home")
    expect(field).to_have_value("1")
    expect(slider).to_have_attribute("aria-valuetext", "1")
    expect(fit).to_contain_text("up to 1 are computed at once")
    page.keyboard.press("ArrowRight")
    expect(fit).to_contain_text("up to 2 are computed at once")
    page.fill("#context", "100")
    expect(fit).to_contain_text("2 sequences of 100 tokens")
    expect(page.get_by_role("slider", name="Tokens of each sequence")).to_have_attribute("aria-valuetext", "100")

    held: list[Route] = []
    page.route("**/*sequences=7*", lambda route: held.append(route))  # playwright marks the function
    page.fill("#concurrency", "7")
    wait_until(lambda: page.evaluate("1") and held, 60, "the older question")
    page.fill("#concurrency", "9")
    expect(fit).to_contain_text("up to 9 are computed at once")
    for route in held:
        with suppress(Error):  # aborted
            route.continue_()
    page.unroute("**/*sequences=7*")
    page.fill("#concurrency", str(10**9))
    expect(fit).to_contain_text("Sequences at once: '1000000000' isn't a whole number from 1 to 4,096.")
    page.fill("#concurrency", "9")
    expect(fit).to_contain_text("up to 9 are computed at once")
    expect(fit.locator("svg.memory-bar")).to_have_attribute("aria-label", re.compile("weights .*paged cache .*free "))


def test_the_model_page_says_whether_it_fits_and_why_it_went(page: Page, site: LiveServer) -> None:
    checkpoint_id = site.checkpoint_id("demo")
    await_loaded(site)

    def fits() -> tuple[Any, Any]:
        told = httpx.get(f"{site.url}/v1/models/demo/fit", timeout=60).json()["workers"]
        return told, page.request.get(f"{site.url}/registry/checkpoints/{checkpoint_id}/fit").json()

    def is_same() -> bool:
        told, shown = fits()
        return shown == {"fits": True, "workers": told}

    # What other models hold and the plan's sizes are the same numbers, whoever asks; models of earlier tests may go.
    wait_until(is_same, 60, "the same answer to both")
    (worker,), _ = fits()
    page.goto(f"/models/{checkpoint_id}/?tab=memory")
    expect(page.locator("#live")).to_have_text("ready")
    fit = page.locator("#fit")
    expect(fit).to_contain_text(worker["worker_id"])
    expect(fit).to_contain_text("Loaded here with")
    expect(page.locator("#concurrency")).to_have_value(str(worker["max_num_seqs"]))
    expect(page.locator("#context")).to_have_value(str(worker["max_model_len"]))
    assert_sliders_ask(page)
    expect(page.locator("#departure")).to_be_hidden()
    page.click("#load")
    expect(page.locator("#live")).to_have_text("not loaded")
    status = f"{site.url}/v1/models/demo/status"
    (*_, departure) = wait_until(lambda: httpx.get(status, timeout=60).json()["departures"], 60, "the departure")
    reason = departure["reason"]
    expect(page.locator("#departure")).to_contain_text(reason)
    page.reload()
    expect(fit).to_contain_text("Fits with")
    page.click("#load")
    expect(page.locator("#live")).to_have_text("ready")
    expect(page.locator("#departure")).to_be_hidden()


def test_an_override_is_set_shown_and_cleared(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=facts")
    page.click("[data-override=max_position_embeddings]")
    expect(page.locator("#override-value")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("512")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("max_position_embeddings is set")
    row = page.locator("tr", has_text="max_position_embeddings")
    expect(row).to_contain_text("512")
    expect(row).to_contain_text("override")
    row.get_by_role("button", name="Clear the override").click()
    expect(page.locator("#toasts")).to_contain_text("is detected again")
    expect(page.locator("tr", has_text="max_position_embeddings")).to_contain_text("1024")
    page.click("summary:has-text('History')")
    expect(page.locator("details[open]")).to_contain_text("by admin")


def test_settings_and_names_are_saved_or_refused(page: Page, site: LiveServer, complaints: Complaints) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/?tab=settings")
    site.manage(  # by somebody else, since the page was drawn
        "from models_registry import services; from models_registry.models import Checkpoint;"
        "demo = Checkpoint.objects.get(served_model_name='demo');"
        "services.checkpoint_settings_update(checkpoint=demo, values={'keep_alive_s': 600})"
    )
    page.fill("#setting-max_num_seqs", "8")
    page.click("text=Save settings")
    expect(page.locator("#toasts")).to_contain_text("Saved")
    page.reload()
    expect(page.locator("#setting-max_num_seqs")).to_have_value("8")
    expect(page.locator("#setting-keep_alive_s")).to_have_value("600")
    page.fill("#setting-keep_alive_s", "")
    page.fill("#setting-max_num_seqs", "")
    page.fill("#setting-max_model_len", "4096")
    page.click("text=Save settings")
    expect(page.locator("#toasts .bad")).to_contain_text("max_model_len is 4096, the checkpoint has 1024 positions")
    page.fill("#setting-max_model_len", "")
    page.click("text=Save settings")
    expect(page.locator("#toasts .good")).to_contain_text("Saved")
    complaints[:] = [text for text in complaints if "400" not in text]  # the refusal, in the browser's words


FORMULA = "=cmd()|' /C calc'!A0"
ADMIN_PAGES = (
    "/admin/inference/apikey/",
    "/admin/inference/storedfile/",
    "/admin/inference/usageday/",
    "/admin/models_registry/checkpoint/",
)


@pytest.mark.fault(
    "F64",
    provoked="markup, template expressions and formulas in the stored names, labels, facts and reasons of models, "
    "keys, files and usage, opened on all pages and in the admin, and exported as CSV",
    holds="no dialog, no request, no error in Chromium; the text is shown as text; cells that a spreadsheet would "
    "compute are quoted",
)
def test_hostile_text_stays_text(page: Page, site: LiveServer, complaints: Complaints) -> None:
    """Dialogs, errors and requests that it would cause are complaints, which the fixture asserts away."""
    site.manage(
        "from models_registry.models import *; from django.utils import timezone;"
        "row = Checkpoint.objects.get(served_model_name='demo');"
        f"evil = {HOSTILE!r}; original = row.pk;"
        "row.pk = None; row.id = __import__('uuid').uuid4(); row.served_model_name = evil; row.path = evil;"
        "row.inspection['warnings'] = [evil]; row.inspection['facts'][0].update(value=evil, evidence=evil);"
        "row.architecture = evil; row.model_type = evil; row.origin = evil;"
        "row.state = 'refused'; row.state_reason = evil;"
        "row.save(force_insert=True);"
        "CheckpointOverride.objects.create(checkpoint=row, fact=evil[:64], value=evil, author_name=evil);"
        "from inference.access.api_keys import api_key_create; key, _ = api_key_create(name=evil);"
        "from inference.models import StoredFile, UsageDay;"
        "StoredFile.objects.create(file_id='file-evil', filename=evil, purpose='batch', size_bytes=1,"
        " sha256='0' * 64, tenant=f'key:{key.pk}', created_at=timezone.now());"
        f"UsageDay.objects.create(day=timezone.now().date(), tenant=f'key:{{key.pk}}', model={FORMULA!r})"
    )
    try:
        evil = f"/models/{site.checkpoint_id(HOSTILE)}/"
        for path in [*paths(site), *(f"{evil}?tab={tab}" for tab in TABS)]:
            page.goto(path)
            assert page.locator("img").count() == 0, path
        expect(page.locator("h1")).to_have_text(HOSTILE)
        complaints[:] = [text for text in complaints if "404" not in text]  # of the page that isn't there
        for path in ADMIN_PAGES:
            page.goto(path)
            assert page.locator("img[src=x]").count() == 0, path
            expect(page.locator("#content")).to_contain_text(FORMULA if "usageday" in path else HOSTILE)
        exported = httpx.get(f"{site.url}/v1/usage?format=csv", headers=site.admin_headers).text
        assert f"'{FORMULA}" in exported and f",{FORMULA}" not in exported
    finally:
        site.manage(
            f"from models_registry.models import *; Checkpoint.objects.filter(served_model_name={HOSTILE!r}).delete();"
            "from inference.models import *; UsageDay.objects.all().delete(); StoredFile.objects.all().delete();"
            f"ApiKey.objects.filter(name={HOSTILE!r}).delete()"
        )
