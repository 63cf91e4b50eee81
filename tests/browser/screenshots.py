"""Take pictures of every page, in both themes and sizes, of a real server with a model that has answered.

``python -m tests.browser.screenshots DIRECTORY [--only overview,jobs]`` starts a server of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.actions import second_revision
from tests.browser.chromium import chromium_binary
from tests.live.conftest import ROOT, LiveServer, wait_until
from tests.live.test_batches import lines_of, look, start

SIZES = {"wide": (1440, 900), "narrow": (360, 780)}
THEMES = ("light", "dark")


def pages(site: LiveServer, chat: str, batch: str, schedule: str) -> dict[str, str]:
    """The pages by the names of their pictures."""
    key = site.checkpoint_id("demo")
    model = f"/models/{key}/"
    tabs = ("overview", "layers", "tensors", "revisions", "memory", "template", "facts", "settings")
    return {
        "overview": "/",
        "models": "/models/",
        "upload": "/models/upload/",
        **{f"model-{tab}": f"{model}?tab={tab}" for tab in tabs},
        "model-tokenizer": f"{model}tokenizer/",
        "model-layer": f"{model}?tab=layers&by=bytes&layer=2",
        "model-compute": f"{model}?tab=layers&by=compute&layer=2",
        "model-tensor": f"{model}?tab=tensors&q=embed&figures=1&tensor=embed_tokens.weight",
        "model-changes": f"/models/{site.checkpoint_id('other')}/?tab=revisions&from={key}",
        "compare": f"/models/compare/?a={key}&b={site.checkpoint_id('other')}",
        "playground": f"/playground/{chat}",
        "jobs": "/jobs/",
        "jobs-search": "/jobs/?batch=nowhere",
        "batch": f"/batches/{batch}/?line=2",
        "schedules": "/schedules/",
        "schedule": f"/schedules/{schedule}/",
        "schedule-new": f"/schedules/?batch={batch}",
        "requests": "/requests/",
        "keys": "/keys/",
        "settings": "/settings/",
        "docs": "/docs",
        "not-found": "/nowhere",
    }


@contextmanager
def demo_server() -> Iterator[LiveServer]:
    with tempfile.TemporaryDirectory() as directory:
        model = f"demo={ROOT / 'inference' / 'demo' / 'checkpoint'}"
        server = LiveServer(Path(directory) / "data", "--model", model, "--cpu")
        try:
            server.wait_ready()
            second_revision(server, Path(directory) / "other")
            yield server
        finally:
            server.stop()


def sign_in(browser: Browser, site: LiveServer) -> dict:
    context = browser.new_context(base_url=site.url)
    page = context.new_page()
    page.goto("/login/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", (site.data_dir / "admin_password").read_text().strip())
    page.click("button:has-text('Sign in')")
    page.wait_for_url(f"{site.url}/")
    state = context.storage_state()
    context.close()
    return state


def chat(context: BrowserContext) -> str:
    """Let the model answer once, so that the pages have something to show; returns the query of the kept chat."""
    page = context.new_page()
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "48")
    page.fill("#prompt", "What is a module?")
    page.keyboard.press("Enter")
    page.locator(".figures", has_text="ended by").wait_for()
    page.wait_for_url("**/playground/?chat=*")
    address = page.url.partition("/playground/")[2]
    page.close()
    return address


def batch(site: LiveServer) -> str:
    """Run a batch with a line that fails; returns its id when it has ended."""
    lines = lines_of(12, max_tokens=8)
    lines[3]["body"]["temperature"] = 70
    made = start(site, lines)
    wait_until(lambda: look(site, made)["status"] == "completed", 120, "the batch's end")
    return made


def schedules(site: LiveServer, batch_id: str) -> str:
    """Make a schedule for each action, and run the one of a batch twice; returns its id."""
    times = {"cron": "0 8 * * mon-fri", "time_zone": "Europe/Berlin"}
    with httpx.Client(base_url=site.url, timeout=30) as http:
        for action in ("load", "unload"):
            body = {**times, "action": action, "model": "demo", "paused": action == "unload"}
            http.post("/api/schedules", json=body).raise_for_status()
        file = look(site, batch_id)["input_file_id"]
        members = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "6h"}
        body = {"name": "Nightly evaluation", "cron": "30 2 * * *", "time_zone": "Europe/Berlin", "action": "batch"}
        made = http.post("/api/schedules", json={**body, "batch": members}).raise_for_status().json()["id"]
        for _ in range(2):
            http.post(f"/api/schedules/{made}/run").raise_for_status()
        return str(made)


def take(page: Page, path: str, file: Path, width: int) -> None:
    page.goto(path)
    page.wait_for_timeout(500)
    page.screenshot(path=file, full_page=True)
    if overflow := page.evaluate("document.documentElement.scrollWidth - innerWidth"):
        sys.stderr.write(f"{file.name}: {overflow} px wider than {width}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="words of names, with commas between")
    arguments = parser.parse_args()
    binary = chromium_binary()
    if binary is None:
        sys.stderr.write("There is no Chromium. Try: apt-get install chromium\n")
        return 1
    arguments.directory.mkdir(parents=True, exist_ok=True)
    wanted = [word for word in arguments.only.split(",") if word]
    with demo_server() as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        state = sign_in(browser, site)
        kept = chat(browser.new_context(base_url=site.url, storage_state=state))
        ended = batch(site)
        made = schedules(site, ended)
        for size, (width, height) in SIZES.items():
            for theme in THEMES:
                context = browser.new_context(
                    base_url=site.url,
                    storage_state=state,
                    color_scheme=theme,
                    viewport={"width": width, "height": height},
                )
                page = context.new_page()
                for name, path in pages(site, kept, ended, made).items():
                    if not wanted or name in wanted:
                        take(page, path, arguments.directory / f"{name}-{size}-{theme}.png", width)
                context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
