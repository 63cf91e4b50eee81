"""Every page in Chromium: what it does, by mouse and by keyboard, and how it looks at both ends of the sizes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, WebSocketRoute, expect

from tests.browser.conftest import Complaints
from tests.live.conftest import ROOT, LiveServer, wait_until
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.browser

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


# --- looks -------------------------------------------------------------------------------------

CONTRAST = """
() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const luminance = ({ r, g, b }) => {
    const part = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.a === 1) return colour;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest(":disabled, noscript, script, option")) continue;
    const style = getComputedStyle(element);
    const [high, low] = [luminance(parse(style.color)), luminance(ground(element))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${element.tagName} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return poor;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_pages_fit_and_can_be_read(
    chromium: Browser, site: LiveServer, session_state: dict, complaints: Complaints, width: int, scheme: str
) -> None:
    context = chromium.new_context(
        base_url=site.url, storage_state=session_state, color_scheme=scheme, viewport={"width": width, "height": 844}
    )
    page = context.new_page()
    complaints.watch(page)
    demo = f"/models/{site.checkpoint_id('demo')}/"
    for path in ("/", "/models/", "/models/upload/", demo, "/playground/", "/jobs/", "/docs"):
        page.goto(path, wait_until="networkidle")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        assert page.evaluate(CONTRAST) == [], path
        unnamed = page.locator("button, a, input:not([hidden]):not([type=hidden]), select, textarea").evaluate_all(
            "(all) => all.filter((e) => e.checkVisibility() && !(e.innerText || e.getAttribute('aria-label') || e.title"
            " || e.labels?.length)).map((e) => e.outerHTML)"
        )
        assert unnamed == [], path
    assert complaints == []
    context.close()


def test_the_theme_follows_the_system_until_chosen(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_title("Switch between light and dark").click()
    page.goto("/jobs/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_keyboard_reaches_everything_visibly(page: Page) -> None:
    page.goto("/models/", wait_until="networkidle")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate_handle("document.activeElement")
        outline = focused.evaluate("(element) => getComputedStyle(element).outlineStyle")
        key = focused.evaluate("(element) => element.outerHTML.slice(0, 120)")
        if key.startswith("<body"):
            break
        assert outline != "none", key
        seen.add(key)
    assert any("search" in key for key in seen)
    assert any("Unload demo" in key or "Load demo" in key for key in seen)


# --- dashboard and models ------------------------------------------------------------------------


def test_the_dashboard_shows_what_is_alive(page: Page) -> None:
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
    layers = page.locator("#layer-map button")
    expect(layers).to_have_count(6)
    layers.first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#layer-detail h3")).to_have_text("Layer 2: latent attention (MLA) + mixture of experts")
    expect(page.locator(".tooltip")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("#layer-detail h3")).to_contain_text("Layer 5")
    page.fill("#tensor-search", "layers.2 router")
    expect(page.locator("#tensors tr")).to_have_count(1)
    page.fill("#tensor-search", "")
    expect(page.locator("#tensor-count")).to_contain_text("1 to 25 of 86")
    page.click("#tensors-next")
    expect(page.locator("#tensor-count")).to_contain_text("26 to 50 of 86")


def test_the_model_page_says_whether_it_fits_and_why_it_went(page: Page, site: LiveServer) -> None:
    checkpoint_id = site.checkpoint_id("demo")
    page.goto(f"/models/{checkpoint_id}/")
    expect(page.locator("#live")).to_have_text("ready")
    (worker,) = httpx.get(f"{site.url}/v1/models/demo/fit", timeout=20).json()["workers"]
    shown = page.request.get(f"{site.url}/registry/checkpoints/{checkpoint_id}/fit").json()
    # What other models hold and the plan's sizes are the same numbers, whoever asks.
    assert shown == {"fits": True, "workers": [worker]}
    fit = page.locator("#fit")
    expect(fit).to_contain_text(worker["worker_id"])
    expect(fit).to_contain_text("It is loaded here.")
    expect(fit).to_contain_text("room enough")
    page.fill("#concurrency", str(10**9))
    expect(fit).to_contain_text("that can be had")
    expect(fit).to_contain_text(f"{worker['max_num_seqs']} are computed at once, the rest waits")
    expect(page.locator("#departure")).to_be_hidden()
    page.click("#load")
    expect(page.locator("#live")).to_have_text("not loaded")
    reason = httpx.get(f"{site.url}/v1/models/demo/status", timeout=20).json()["departures"][-1]["reason"]
    expect(page.locator("#departure")).to_contain_text(reason)
    expect(fit).to_contain_text("It fits beside what is loaded.")
    page.click("#load")
    expect(page.locator("#live")).to_have_text("ready")
    expect(page.locator("#departure")).to_be_hidden()


def test_an_override_is_set_shown_and_cleared(page: Page, site: LiveServer) -> None:
    page.goto(f"/models/{site.checkpoint_id('demo')}/")
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
    page.goto(f"/models/{site.checkpoint_id('demo')}/")
    page.fill("#setting-max_num_seqs", "8")
    page.click("text=Save settings")
    expect(page.locator("#toasts")).to_contain_text("Saved")
    page.reload()
    expect(page.locator("#setting-max_num_seqs")).to_have_value("8")
    page.fill("#setting-max_num_seqs", "")
    page.fill("#setting-max_model_len", "4096")
    page.click("text=Save settings")
    expect(page.locator("#toasts .bad")).to_contain_text("max_model_len is 4096, the checkpoint has 1024 positions")
    page.fill("#setting-max_model_len", "")
    page.click("text=Save settings")
    expect(page.locator("#toasts .good")).to_contain_text("Saved")
    complaints[:] = [text for text in complaints if "400" not in text]  # the refusal, in the browser's words


# --- uploads -------------------------------------------------------------------------------------


def test_upload_load_try_unload_delete(page: Page, site: LiveServer, tmp_path: Path) -> None:
    upload(page, "sent-demo", demo_files(tmp_path))
    expect(page.locator("#outcome h2")).to_have_text("sent-demo is registered")
    page.click("text=Look at it")
    expect(page.locator("h1")).to_have_text("sent-demo")
    page.click("#load")
    expect(page.locator("#live")).to_have_text("ready")
    page.click("a:has-text('Playground') >> nth=-1")
    expect(page.locator("#model")).to_have_value("sent-demo")
    page.fill("#prompt", "What is a module?")
    page.keyboard.press("Enter")
    expect(page.locator("#readout")).to_contain_text("ended by")
    page.goto(f"/models/{site.checkpoint_id('sent-demo')}/")
    expect(page.locator("#load")).to_have_text("Unload")
    page.click("#load")
    expect(page.locator("#live")).to_have_text("not loaded")
    page.click("#delete")
    page.click("dialog >> text=Keep it")
    expect(page.locator("h1")).to_have_text("sent-demo")
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    page.wait_for_url("**/models/")
    expect(page.locator("#models")).not_to_contain_text("sent-demo")
    assert files_in(site.data_dir / "checkpoints", site.data_dir / "blobs", site.data_dir / "uploads") == []


def test_a_broken_checkpoint_is_refused_with_the_reason(page: Page, site: LiveServer, tmp_path: Path) -> None:
    shapes, config = small_hybrid()
    place = write_checkpoint(tmp_path / "broken", shapes, config)
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    upload(page, "broken", [str(weights), str(place / "config.json")])
    expect(page.locator("#outcome h2")).to_have_text("Refused")
    expect(page.locator("#outcome")).to_contain_text("model.safetensors")
    expect(page.locator("#outcome")).to_contain_text("truncated")
    wait_until(lambda: not files_in(site.data_dir / "uploads", site.data_dir / "blobs"), 10, "the cleaning up")


def test_what_does_not_belong_is_left_out_or_refused(page: Page, tmp_path: Path) -> None:
    files = demo_files(tmp_path)
    for name in ("run.py", "pytorch_model.bin"):
        (tmp_path / name).write_text("no")
        files.append(str(tmp_path / name))
    page.goto("/models/upload/")
    page.set_input_files("#files-input", files)
    expect(page.locator("#files")).to_contain_text("a pickle: could run code, never read")
    expect(page.locator("#files")).to_contain_text("not part of a checkpoint")
    expect(page.locator("#summary")).to_contain_text("4 files")
    page.set_input_files("#files-input", [str(tmp_path / "run.py")])
    expect(page.locator("#outcome")).to_contain_text("no .safetensors file")
    expect(page.locator("#start")).to_be_disabled()


def test_a_folder_gives_the_name(page: Page, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "Night Sky 7B"))
    (folder / "sub").mkdir()
    (folder / "sub" / "model.safetensors").write_bytes(b"no")
    page.goto("/models/upload/")
    page.set_input_files("#folder-input", str(folder))
    expect(page.locator("#name")).to_have_value("Night-Sky-7B")
    expect(page.locator("#files")).to_contain_text("in a subfolder")


def test_a_lost_connection_is_survived(page: Page, tmp_path: Path, complaints: Complaints, site: LiveServer) -> None:
    """Pieces that get lost are sent again, those that arrived (their answer got lost) are not."""
    seen = {"lost": 0, "answer lost": 0}

    def trouble(route: Route) -> None:
        if seen["lost"] < 1:
            seen["lost"] += 1
            route.abort()
        elif "files/2" in route.request.url and seen["answer lost"] < 1:
            seen["answer lost"] += 1
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/registry/uploads/*/files/**", trouble)
    upload(page, "survivor", demo_files(tmp_path))
    expect(page.locator("#outcome h2")).to_have_text("survivor is registered")
    assert seen == {"lost": 1, "answer lost": 1}
    complaints[:] = [text for text in complaints if "ERR_FAILED" not in text]
    delete(page, site, "survivor")


def delete(page: Page, site: LiveServer, name: str) -> None:
    page.goto(f"/models/{site.checkpoint_id(name)}/")
    page.click("#delete")
    page.click("dialog >> text=Delete it")
    page.wait_for_url("**/models/")


def test_cancelling_an_upload(page: Page, site: LiveServer, tmp_path: Path, complaints: Complaints) -> None:
    page.route("**/registry/uploads/*/files/0**", lambda route: None)  # never answered: the line is slow
    upload(page, "given-up", demo_files(tmp_path))
    expect(page.locator("#total")).to_be_visible()
    wait_until(lambda: files_in(site.data_dir / "uploads"), 10, "the first piece")
    page.click("#cancel")
    expect(page.locator("#outcome h2")).to_have_text("Cancelled")
    wait_until(lambda: not files_in(site.data_dir / "uploads"), 10, "the cleaning up")
    complaints[:] = [text for text in complaints if "409" not in text and "ERR_FAILED" not in text]


# --- playground ------------------------------------------------------------------------------------


def test_chat_streams_and_goes_on(page: Page) -> None:
    page.goto("/playground/?model=demo")
    page.fill("#p-max_tokens", "24")
    for number in (1, 2):
        page.fill("#prompt", "What does it return?")
        page.keyboard.press("Enter")
        expect(page.locator("#readout")).to_contain_text("ended by")
        expect(page.locator(".turn")).to_have_count(2 * number)
    text = page.locator("#readout").inner_text()
    assert re.search(r"first token \d+", text)
    assert re.search(r"tokens/s [\d.]+", text)
    curl = page.locator("#curl").inner_text()
    assert "/v1/chat/completions" in curl
    assert curl.count('"role": "assistant"') == 2
    page.click("text=Start over")
    expect(page.locator(".turn")).to_have_count(0)


def test_completion_is_deterministic_and_the_curl_line_says_the_same(page: Page, site: LiveServer) -> None:
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-temperature", "0")
    page.fill("#p-max_tokens", "16")
    page.fill("#prompt", "The statement")
    body = json.loads(re.search(r"-d '(.*)'$", page.locator("#curl").inner_text(), re.DOTALL).group(1))
    page.keyboard.press("Control+Enter")
    expect(page.locator("#readout")).to_contain_text("ended by")
    written = page.locator(".turn.assistant .text").inner_text()
    answer = site.complete(**{key: value for key, value in body.items() if key != "stream"}).json()
    assert written.strip() == answer["choices"][0]["text"].strip()


def test_stopping_frees_the_slot(page: Page, site: LiveServer) -> None:
    """The worker waits from its first words on: it would have written all of them before a hand could stop it."""
    worker = site.pid_of("worker")
    held: list[int] = []

    def hold_the_worker(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def forward(message: str | bytes) -> None:
            frame = json.loads(message)
            if "request" in frame:
                frame["request"] |= {"ignore_eos": True, "n": 32}
            server.send(json.dumps(frame))

        def answer(message: str | bytes) -> None:
            if json.loads(message)["type"] == "chunk" and not held:
                held.append(worker)
                os.kill(worker, signal.SIGSTOP)
            socket.send(message)

        socket.on_message(forward)
        server.on_message(answer)

    page.route_web_socket(re.compile("/v1/stream$"), hold_the_worker)
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-max_tokens", "1000")
    page.fill("#prompt", "The statement")
    try:
        page.keyboard.press("Control+Enter")
        expect(page.locator("#readout")).to_contain_text("tokens")
        page.keyboard.press("Escape")
        expect(page.locator("#readout")).to_contain_text("ended by you")
        expect(page.locator("#send")).to_be_visible()
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_until(lambda: site.model().num_running == 0, 5, "the end of the request, of some seven seconds otherwise,")


def test_a_refused_request_is_explained(page: Page) -> None:
    page.goto("/playground/")
    page.click("text=Completion")
    page.fill("#p-max_tokens", "100000")
    page.fill("#prompt", "The statement")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".turn .note.bad")).to_contain_text("max_model_len")
    expect(page.locator("#send")).to_be_enabled()


# --- jobs --------------------------------------------------------------------------------------------


def test_jobs_are_queued_run_and_shown(page: Page) -> None:
    page.goto("/jobs/")
    page.click("#new")
    page.fill("#job-prompt", f"one\n{HOSTILE}\n\nthree")
    page.check("#job-lines")
    page.fill("#job-max", "12")
    page.fill("#job-label", HOSTILE)
    page.click("text=Queue it")
    expect(page.locator("#toasts")).to_contain_text("3 jobs are queued")
    page.fill("#label", HOSTILE)
    expect(page.locator("#counts")).to_have_text("3 succeeded")
    page.locator("#jobs tbody button").first.click()
    expect(page.locator("#job-dialog")).to_contain_text("succeeded")
    expect(page.locator("#job-dialog pre").first).not_to_be_empty()
    assert page.url.endswith(f"#{page.locator('#job-dialog p.mono').inner_text()}")
    page.keyboard.press("Escape")
    expect(page.locator("#job-dialog")).not_to_be_visible()
    page.select_option("#state", "failed")
    expect(page.locator("#jobs")).to_contain_text("No job matches")
    page.goto("/")
    expect(page.locator("#jobs")).to_contain_text(HOSTILE)


def test_a_job_can_be_cancelled(page: Page) -> None:
    page.goto("/jobs/")
    page.click("#new")
    page.fill("#job-prompt", "\n".join(f"line {n}" for n in range(40)))
    page.check("#job-lines")
    page.fill("#job-max", "900")
    page.fill("#job-label", "long")
    page.click("text=Queue it")
    page.fill("#label", "long")
    expect(page.locator("#jobs tbody tr").first).to_be_visible()
    page.evaluate(
        """async () => {
          const { call } = await import("/static/registry/kit.js");
          const { data } = await call("GET", "/api/jobs?batch_label=long&limit=100");
          for (const job of data.slice(1)) await call("POST", `/api/jobs/${job.id}/cancel`);
        }"""
    )
    page.locator("#jobs tbody tr").first.get_by_role("button", name="Cancel").click()
    expect(page.locator("#counts")).to_have_text(re.compile(r"^(\d+ succeeded, )?\d+ cancelled$"))


def test_batches_are_shown_with_their_progress_and_files(page: Page, site: LiveServer) -> None:
    from tests.live.test_batches import lines_of, start

    page.goto("/jobs/")
    expect(page.locator("#batches-card")).to_be_hidden()
    start(site, lines_of(3, max_tokens=4))
    row = page.locator("#batches tbody tr").first
    expect(row).to_contain_text("completed")
    expect(row).to_contain_text("3 of 3")
    expect(row).to_contain_text("12")
    with page.expect_download() as found:
        row.get_by_role("link", name="output").click()
    assert len(Path(found.value.path()).read_text().splitlines()) == 3
    start(site, lines_of(400, max_tokens=400))
    row.get_by_role("button", name="Cancel").click()
    expect(page.locator("#batches tbody tr").first).to_contain_text("cancelled")


# --- text of others ------------------------------------------------------------------------------------


def test_hostile_text_stays_text(page: Page, site: LiveServer, context: BrowserContext) -> None:
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
        "CheckpointOverride.objects.create(checkpoint=row, fact=evil[:64], value=evil, author_name=evil)"
    )
    try:
        for path in ("/", "/models/", "/playground/", "/jobs/", f"/models/{site.checkpoint_id(HOSTILE)}/"):
            page.goto(path, wait_until="networkidle")
            assert page.locator("img").count() == 0, path
        expect(page.locator("h1")).to_have_text(HOSTILE)
    finally:
        site.manage(
            f"from models_registry.models import *; Checkpoint.objects.filter(served_model_name={HOSTILE!r}).delete()"
        )
