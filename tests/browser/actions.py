"""Files to upload, and what several tests do on the pages."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from playwright.sync_api import Page

from tests.live.conftest import ROOT, LiveServer, wait_until

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


def children_of(site: LiveServer, module: str) -> list[int]:
    """Processes that do a job of this kind for this server."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if module.encode() in command and str(site.data_dir).encode() in environment:
                found.append(int(entry.name))
    return found


def held_child(site: LiveServer, module: str) -> int:
    """The process of a job, stopped at whatever it does: it would be done before a hand could end it."""
    (child,) = wait_until(lambda: children_of(site, module), 60, "the start of the process")
    os.kill(child, signal.SIGSTOP)
    return child
