"""Files to upload, and what several tests do on the pages."""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import Page

from tests.live.conftest import ROOT, LiveServer

DEMO = ROOT / "inference" / "demo" / "checkpoint"
HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}"


def demo_files(tmp_path: Path) -> list[str]:
    """A copy of the demo model's files."""
    place = shutil.copytree(DEMO, tmp_path / "copy")
    return [str(file) for file in sorted(place.iterdir())]


def upload(page: Page, name: str, files: list[str]) -> None:
    page.goto("/models/upload/")
    page.set_input_files("#files-input", files)
    page.fill("#name", name)
    page.keyboard.press("Enter")


def files_in(*places: Path) -> list[Path]:
    return [file for place in places for file in place.rglob("*") if file.is_file() and file.name != ".lock"]


def delete(page: Page, site: LiveServer, name: str) -> None:
    page.goto(f"/models/{site.checkpoint_id(name)}/")
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    page.wait_for_url("**/models/")
