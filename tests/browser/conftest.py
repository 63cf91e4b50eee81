"""Chromium against one real server with the demo model.

Package scope throughout: while playwright's synchronous interface is open, an event loop runs in this thread, and
tests of other packages would stumble over it. What a test makes, it removes: the others count models and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.chromium import MISSING, chromium_binary
from tests.live.conftest import ROOT, LiveServer
from tests.models_registry.tiny_hub import Hub, tiny_hub

TIMEOUT_MS = 40_000
"""For actions and expectations alike: a load takes seconds on a busy machine."""


@pytest.fixture(scope="package")
def hub() -> Iterator[tuple[str, type[Hub]]]:
    """A hub that has the demo as ``org/tiny``: its address and its handler."""
    with tiny_hub(ROOT / "inference" / "demo" / "checkpoint") as found:
        yield found


@pytest.fixture(scope="package")
def site(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory, hub: tuple[str, type[Hub]]
) -> Iterator[LiveServer]:
    model = f"demo={ROOT / 'inference' / 'demo' / 'checkpoint'}"
    data_dir = tmp_path_factory.mktemp("site") / "data"
    data_dir.mkdir(mode=0o700)
    (data_dir / "blazr.toml").write_text('[[models]]\nmodel = "../runs"\nwatch = true\n')
    environment = {"HF_ENDPOINT": hub[0], "HF_HOME": str(data_dir.with_name("hub")), "BLAZR_MAX_PULLS": "2"}
    server = LiveServer(data_dir, "--model", model, "--cpu", **environment)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    binary = chromium_binary()
    if binary is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        # Containers have no user namespaces to sandbox with; the only pages are our own.
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        expect.set_options(timeout=TIMEOUT_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def session_state(chromium: Browser, site: LiveServer) -> dict:
    """Cookies of the admin, signed in with the keyboard alone."""
    context = chromium.new_context(base_url=site.url)
    page = context.new_page()
    page.goto("/models/")
    expect(page.locator("#id_username")).to_be_focused()  # by itself; on a busy machine a moment after the load
    page.keyboard.type("admin")
    page.keyboard.press("Tab")
    expect(page.locator("#id_password")).to_be_focused()
    page.keyboard.type((site.data_dir / "admin_password").read_text().strip())
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site.url}/models/", timeout=2 * TIMEOUT_MS)
    state = context.storage_state()
    context.close()
    return state


REPLACED = ("htmx:sendAbort", "htmx:afterRequest")
"""What htmx logs as errors where a newer request has replaced one, which a test may or may not meet."""


NewFiles = Callable[..., set[Path]]


@pytest.fixture
def new_files(site: LiveServer) -> NewFiles:
    """Files in directories of the data that weren't there when the test began: a failed test may have left some."""

    def found(*names: str) -> set[Path]:
        files = (file for name in names for file in (site.data_dir / name).rglob("*"))
        return {file for file in files if file.is_file() and file.name != ".lock"}

    before = found("checkpoints", "blobs", "uploads")
    return lambda *names: found(*names) - before


class Complaints(list[str]):
    """Console errors, uncaught exceptions and dialogs of a page."""

    def watch(self, page: Page) -> None:
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("dialog", lambda dialog: (self.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(REPLACED):
            self.append(message.text)


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def context(chromium: Browser, site: LiveServer, session_state: dict) -> Iterator[BrowserContext]:
    context = chromium.new_context(
        base_url=site.url, storage_state=session_state, viewport={"width": 1280, "height": 900}
    )
    context.set_default_timeout(TIMEOUT_MS)
    yield context
    context.close()


@pytest.fixture
def open_page(chromium: Browser, site: LiveServer, session_state: dict) -> Iterator[Callable[..., Page]]:
    """Open signed-in pages in windows of a size, where colours change at once and axe may run."""
    contexts: list[BrowserContext] = []

    def open_page(width: int, height: int = 844, *, bypass_csp: bool = True, **options: Any) -> Page:
        context = chromium.new_context(
            base_url=site.url, storage_state=session_state, reduced_motion="reduce", bypass_csp=bypass_csp,
            viewport={"width": width, "height": height}, **options,
        )  # fmt: skip
        contexts.append(context)
        return context.new_page()

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def page(context: BrowserContext, complaints: Complaints) -> Iterator[Page]:
    """A signed-in page that must not complain."""
    page = context.new_page()
    complaints.watch(page)
    yield page
    assert complaints == []
