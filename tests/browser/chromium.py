"""Find the browser that the tests drive."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

BINARIES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    f"no Chromium: none of {', '.join(BINARIES)} is on the PATH, and playwright has fetched none. "
    "Try: apt-get install chromium"
)


def chromium_binary() -> str | None:
    """The system's browser, or the one that ``playwright install`` fetched."""
    for name in BINARIES:
        if found := shutil.which(name):
            return found
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
    return str(own) if own.exists() else None
