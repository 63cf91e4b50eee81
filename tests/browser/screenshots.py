"""Take pictures of every page, in both themes and sizes, of a real server with a model that has answered.

``python -m tests.browser.screenshots DIRECTORY [--only overview,jobs]`` starts a server of its own.
"""

from __future__ import annotations

import argparse
import json
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
from tests.models_registry.runs.trainers import oxidizr_run, oxidizr_step

SIZES = {"wide": (1440, 900), "narrow": (360, 780)}
THEMES = ("light", "dark")
FURTHER = """
import json, time
from django.utils import timezone
from inference.dialects.openai.requests import plan_from_body
from inference.models import GenerationJob, UsageRecord
from inference.values.principal import LOCAL
from inference.batches.replays import replay_submit
from models_registry.models import Adapter, Checkpoint, RunStep
from models_registry.runs.services import run_create
base = Checkpoint.objects.get(served_model_name="demo")
Adapter.objects.create(base=base, name="sql", path="/srv/adapters/sql", digest="d", rank=16,
                       targets=["q_proj", "v_proj"], num_values=1, size_bytes=1 << 20)
run = run_create(directory={directory!r})
while RunStep.objects.filter(run=run, checkpoint__isnull=False).count() < 2:
    time.sleep(1)
message = {{"role": "user", "content": "Why?"}}
plan = plan_from_body("chat", {{"model": "demo", "messages": [message], "max_tokens": 24}})
row = UsageRecord.objects.create(
    request_id="chatcmpl-kept", created_at=timezone.now(), tenant="local", endpoint="chat", model="demo",
    outcome="completed", duration_s=2.7, queue_s=1.7, engine_s=1.0, ttft_s=1.9, prompt_tokens=9, completion_tokens=8,
    cache_outcome="cold", prompt=json.dumps(list(plan.prompts)), output=json.dumps(["It returns the value."]),
    plan=json.dumps({{**plan.to_dict(), "prompts": []}}),
    phases=json.dumps({{"seconds": {{"queue": 0.2, "load": 1.5, "prefill": 0.2, "decode": 0.8}}, "evicted": ""}}),
)
job = replay_submit(row=row, model="demo", principal=LOCAL)
while GenerationJob.objects.get(pk=job.pk).finished_at is None:
    time.sleep(0.5)
print(json.dumps({{"run": str(run.pk), "job": str(job.job_id), "request": row.request_id}}))
"""
"""Makes what further pages show: an adapter, a run with two checkpoints, a request, and its replay as a job."""


def pages(site: LiveServer, chat: str, batch: str, schedule: str, others: dict[str, str]) -> dict[str, str]:
    """The pages by the names of their pictures."""
    key = site.checkpoint_id("demo")
    model = f"/models/{key}/"
    tabs = (
        "overview", "layers", "tensors", "revisions", "memory", "template", "facts", "adapters", "passport", "settings",
    )  # fmt: skip
    return {
        "overview": "/",
        "models": "/models/",
        "upload": "/models/upload/",
        **{f"model-{tab}": f"{model}?tab={tab}" for tab in tabs},
        "model-tokenizer": f"{model}tokenizer/",
        "model-usage": f"{model}usage/",
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
        "key-new": "/keys/?new=1",
        "settings": "/settings/",
        "accounts": "/settings/accounts/",
        "account-new": "/settings/accounts/?new=1",
        "account": "/settings/accounts/1/",
        **others,
        "docs": "/docs",
        "not-found": "/nowhere",
    }


@contextmanager
def demo_server() -> Iterator[LiveServer]:
    with tempfile.TemporaryDirectory() as directory:
        model = f"demo={ROOT / 'inference' / 'demo' / 'checkpoint'}"
        data_dir = Path(directory) / "data"
        data_dir.mkdir(mode=0o700)
        (Path(directory) / "runs").mkdir()
        (data_dir / "blazr.toml").write_text('[[models]]\nmodel = "../runs"\nwatch = true\n')
        server = LiveServer(data_dir, "--model", model, "--cpu")
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


def further(site: LiveServer) -> dict[str, str]:
    """Make a run, an adapter, a request and its replay; returns their pages by the names of their pictures."""
    directory = oxidizr_run(site.data_dir.parent / "runs" / "nano")
    for number, seed in ((100, 1), (200, None)):
        oxidizr_step(directory, number, seed=seed)
    made = json.loads(site.manage(FURTHER.format(directory=str(directory))))
    request = f"/requests/{made['request']}/"
    return {
        "runs": "/runs/",
        "run": f"/runs/{made['run']}/",
        "job": f"/jobs/{made['job']}/",
        "request": request,
        "replay": f"{request}replays/{made['job']}/",
    }


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
        found = pages(site, kept, ended, schedules(site, ended), further(site))
        for size, (width, height) in SIZES.items():
            for theme in THEMES:
                context = browser.new_context(
                    base_url=site.url,
                    storage_state=state,
                    color_scheme=theme,
                    viewport={"width": width, "height": height},
                )
                page = context.new_page()
                for name, path in found.items():
                    if not wanted or name in wanted:
                        take(page, path, arguments.directory / f"{name}-{size}-{theme}.png", width)
                context.close()
                if not wanted or "login" in wanted:
                    stranger = browser.new_page(
                        base_url=site.url, color_scheme=theme, viewport={"width": width, "height": height}
                    )
                    take(stranger, "/login/", arguments.directory / f"login-{size}-{theme}.png", width)
                    stranger.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
