"""Quantising on a model's page in Chromium: started, followed, cancelled, refused, and what a killed server leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import HOSTILE, assert_job_card_fits, children_of, delete, held_child
from tests.browser.conftest import Complaints, NewFiles
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.browser

CHILD = "blazr_site.quantise_child"


def open_dialog(page: Page, site: LiveServer) -> None:
    """With the keyboard alone."""
    page.goto(f"/models/{site.checkpoint_id('demo')}/")
    page.focus("#quantise")
    page.keyboard.press("Enter")
    expect(page.locator("#quantise-name")).to_be_focused()


def fill(page: Page, name: str, *, size: str = "", kl: str = "") -> None:
    """Type into the focused fields, in the order of the Tab key."""
    page.keyboard.press("Control+A")
    page.keyboard.type(name)
    page.keyboard.press("Tab")
    page.keyboard.type(size)
    page.keyboard.press("Tab")
    expect(page.locator("#quantise-unit")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type(kl)
    page.keyboard.press("Enter")


def newest(page: Page):
    return page.locator("#quantisations > li").first


def test_quantise_follow_look_try_delete(page: Page, site: LiveServer, new_files: NewFiles) -> None:
    open_dialog(page, site)
    text = b"A module is a file of definitions and statements. " * 10  # the help pages take much longer
    page.set_input_files("#quantise-text", {"name": "short.txt", "mimeType": "text/plain", "buffer": text})
    fill(page, "demo-small", size="1.3", kl="0.5")
    expect(page.locator("#toasts")).to_contain_text("demo-small is being made")
    child = held_child(site, CHILD)
    expect(newest(page)).to_contain_text("running")
    expect(newest(page).locator("progress")).to_be_visible()
    os.kill(child, signal.SIGCONT)
    expect(page.locator("#toasts")).to_contain_text("demo-small is registered", timeout=90_000)
    page.reload()
    expect(newest(page)).to_contain_text("at most 1.2 MiB, KL at most 0.5 nats")
    newest(page).get_by_role("link", name="demo-small").click()
    expect(page.locator("h1")).to_have_text("demo-small")
    expect(page.locator("#curve-title")).to_have_text("Quantised by measurement")
    expect(page.locator("tr.chosen")).to_contain_text("this model")
    expect(page.locator("#quantise")).to_have_count(0)
    page.click("#load")
    expect(page.locator("#live")).to_have_text("ready")
    answer = site.complete(model="demo-small", prompt="The statement", max_tokens=4).json()
    assert answer["usage"]["completion_tokens"] == 4
    delete(page, site, "demo-small")
    wait_until(lambda: not new_files("checkpoints", "blobs", "uploads"), 60, "the removal of all files")
    page.goto(f"/models/{site.checkpoint_id('demo')}/")
    expect(newest(page)).to_contain_text("The model was deleted")


def test_what_is_refused_is_explained(
    page: Page, site: LiveServer, complaints: Complaints, new_files: NewFiles
) -> None:
    open_dialog(page, site)
    fill(page, "demo-refused")
    expect(page.locator("#quantise-error")).to_contain_text("say how small or how close")
    page.fill("#quantise-size", "1")
    page.select_option("#quantise-unit", "GiB")
    page.click("text=Quantise it")
    expect(page.locator("#quantise-error")).to_contain_text("max_bytes is 1073741824; it must be above 0 and below")
    page.fill("#quantise-size", "1")
    page.select_option("#quantise-unit", "MB")
    page.fill("#quantise-name", "demo")
    page.click("text=Quantise it")
    expect(page.locator("#quantise-error")).to_contain_text("'demo' is taken")
    page.fill("#quantise-name", "demo-refused")
    text = {"name": "picture.txt", "mimeType": "text/plain", "buffer": b"\xff\xfe\x00"}
    page.set_input_files("#quantise-text", text)
    page.click("text=Quantise it")
    expect(page.locator("#quantise-error")).to_contain_text("picture.txt is no text in UTF-8")
    page.set_input_files("#quantise-text", text | {"buffer": ("ä word " * 10_000).encode()})
    page.fill("#quantise-size", "0.001")
    page.click("text=Quantise it")
    expect(newest(page)).to_contain_text("can't be made smaller than", timeout=60_000)
    expect(newest(page)).to_contain_text("failed")
    page.keyboard.press("Escape")
    complaints[:] = [text for text in complaints if "400" not in text and "409" not in text]
    wait_until(lambda: not new_files("uploads"), 60, "the cleaning up")  # behind the end of the row


def test_cancelling_ends_the_process_and_removes_its_files(page: Page, site: LiveServer, new_files: NewFiles) -> None:
    open_dialog(page, site)
    fill(page, "demo-given-up", kl="0.01")
    child = held_child(site, CHILD)
    newest(page).get_by_role("button", name="Cancel demo-given-up").click()
    page.click("dialog >> text=Keep it")
    expect(newest(page)).to_contain_text("running")
    newest(page).get_by_role("button", name="Cancel demo-given-up").click()
    page.click("dialog >> text=Cancel it")
    expect(newest(page)).to_contain_text("cancelled by admin")
    os.kill(child, signal.SIGCONT)
    wait_until(lambda: not children_of(site, CHILD), 60, "the end of the process")
    wait_until(lambda: not new_files("uploads"), 60, "the cleaning up")


def test_a_killed_web_process_fails_it_with_the_reason(
    page: Page, site: LiveServer, complaints: Complaints, new_files: NewFiles
) -> None:
    open_dialog(page, site)
    fill(page, "demo-killed", kl="0.01")
    child = held_child(site, CHILD)
    os.kill(site.pid_of("blazr_site.web"), signal.SIGKILL)
    os.kill(child, signal.SIGCONT)
    wait_until(lambda: not children_of(site, CHILD), 60, "the end of the process that quantised")
    # The sweep of the next minute, or the next start of a quantisation; nobody has to wait for that here.
    site.manage(
        "from models_registry import checkpoint_jobs as j; j.START_LIMIT *= 0;"
        "from models_registry.sweep import storage_sweep; storage_sweep()"
    )
    expect(newest(page)).to_contain_text("the server stopped while it quantised; start it again", timeout=60_000)
    expect(newest(page)).to_contain_text("failed")
    wait_until(lambda: not new_files("uploads"), 60, "the cleaning up")
    complaints[:] = [text for text in complaints if "ERR_CONNECTION" not in text and "WebSocket" not in text]


@pytest.fixture
def rows_of_each_state(site: LiveServer) -> Iterator[None]:
    site.manage(
        "from models_registry.models import *; from django.utils import timezone;"
        "source = Checkpoint.objects.get(served_model_name='demo');"
        f"text = {HOSTILE!r} + 'x' * 80; Quantisation.objects.all().delete();"
        "[Quantisation.objects.create(source=source, source_name='demo', served_model_name=text[:90], max_kl=0.01,"
        " max_bytes=10**9, progress=0.4, stage=text, state=state, reason=text if state != 'running' else '',"
        " active_at=timezone.now()) for state in ('failed', 'cancelled', 'done', 'running')]"
    )
    yield
    site.manage("from models_registry.models import *; Quantisation.objects.all().delete()")


@pytest.mark.usefixtures("rows_of_each_state")
def test_dialog_and_rows_fit_and_can_be_read(page: Page, site: LiveServer) -> None:
    assert_job_card_fits(page, site, rows="#quantisations", button="#quantise", num_images=0, tab="overview")
