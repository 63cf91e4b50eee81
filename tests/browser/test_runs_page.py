"""Training runs and passports in Chromium: watched, compared, promoted, refused, forgotten; with the keyboard too."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.actions import HOSTILE, assert_fits_and_can_be_read, children_of, held_child
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer, wait_until
from tests.models_registry.runs.trainers import oxidizr_run, oxidizr_step

pytestmark = pytest.mark.browser

PASSPORT_CHILD = "blazr_site.passport_child"
POOR_LABELS = """
() => {
  const lines = [...document.querySelectorAll(".curve .grid")].map((line) => line.getBoundingClientRect());
  const [left, right] = [Math.min(...lines.map((r) => r.left)), Math.max(...lines.map((r) => r.right))];
  const [top, bottom] = [Math.min(...lines.map((r) => r.top)), Math.max(...lines.map((r) => r.bottom))];
  const poor = ({ left: l, right: r, top: t, bottom: b }) =>
    b - t < 9 || (r > left && l < right && b > top && t < bottom);
  return [...document.querySelectorAll(".curve text")].filter((e) => poor(e.getBoundingClientRect()))
    .map((e) => e.textContent);
}
"""
"""Labels of a curve that are lower than 9 px, or stand in its area."""


@pytest.fixture
def run_directory(site: LiveServer) -> Iterator[Path]:
    """A run in a directory that the server's settings name: the place of its first model is one of them."""
    yield oxidizr_run(site.data_dir.parent / "runs" / "nano")
    site.manage(
        "from models_registry.models import *; from models_registry.runs.services import *;"
        "[run_delete(run, with_models=True) for run in TrainingRun.objects.all()];"
        "ModelAlias.objects.exclude(name='demo').delete(); Passport.objects.all().delete();"
        "Checkpoint.objects.filter(served_model_name='demo').update(settings={});"
        "[row.delete() for row in Checkpoint.objects.exclude(served_model_name='demo')]"
    )
    shutil.rmtree(site.data_dir.parent / "runs")


def watch(page: Page, directory: Path) -> None:
    """With the keyboard alone."""
    page.goto("/runs/")
    page.focus("#watch")
    page.keyboard.press("Enter")
    expect(page.locator("#run-directory")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(str(directory))
    page.fill("#run-prompts", f"The statement\n{HOSTILE}")
    page.fill("#run-max-tokens", "8")
    page.focus("#run-name")
    page.keyboard.press("Enter")


@pytest.mark.timeout(600)  # both checkpoints are measured
def test_watch_compare_promote_forget(page: Page, site: LiveServer, run_directory: Path) -> None:
    for number, seed in ((100, 1), (200, None)):
        oxidizr_step(run_directory, number, seed=seed)
    watch(page, run_directory)
    page.wait_for_url("**/runs/*-*/")
    rows = page.locator("#run-steps tbody tr")
    expect(rows).to_have_count(2, timeout=60_000)
    expect(page.locator("#run-samples .samples").first.locator("li")).to_have_count(2, timeout=240_000)
    expect(page.locator("#run-curve circle")).to_have_count(2)
    expect(page.locator("#run-samples h3").nth(1)).to_have_text(HOSTILE)
    losses = [float(row.locator("td").nth(2).inner_text()) for row in rows.all()]
    assert losses[0] < losses[1]  # noise costs
    page.locator("[data-promote]").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#promote-alias")).to_be_focused()
    page.keyboard.type("best")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("best means step 200 now (revision 1).")
    expect(rows.first.locator(".badge")).to_have_text("best")
    page.get_by_role("button", name="Measuring").click()
    expect(page.locator("#run-prompts")).to_have_value(f"The statement\n{HOSTILE}\n")
    page.fill("#run-seed", "7")
    page.fill("#run-prompts", "Another one")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#toasts")).to_contain_text("measured so from now on")
    expect(page.locator("#samples-title + span")).to_contain_text("temperature 0.7, seed 7")
    expect(page.locator("#run-samples h3").first).to_have_text("The statement")  # what was measured is kept
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Watch again")).to_be_visible()
    page.get_by_role("button", name="Forget").click()
    expect(page.locator("#forget-close")).to_be_focused()
    page.click("#forget-models")
    page.click("#forget-form .btn-outline-danger")
    page.wait_for_url("**/runs/")
    expect(page.locator("#runs")).to_contain_text("No directory is watched yet.")


def test_a_directory_that_is_gone_and_refusals(
    page: Page, site: LiveServer, run_directory: Path, complaints: Complaints
) -> None:
    watch(page, run_directory.parent.parent)
    expect(page.locator("#watch-error")).to_contain_text("is in no directory of the server's settings")
    page.fill("#run-directory", str(run_directory))
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*-*/")
    run_directory.rename(run_directory.with_name("away"))
    expect(page.locator("#run-notes")).to_contain_text("restore it and watching goes on by itself", timeout=60_000)
    run_directory.with_name("away").rename(run_directory)
    expect(page.locator("#run-notes .bad")).to_have_count(0, timeout=60_000)
    complaints[:] = [text for text in complaints if "403" not in text]


@pytest.mark.timeout(600)
def test_a_passport_is_cancelled_made_and_demanded(
    page: Page, site: LiveServer, run_directory: Path, complaints: Complaints
) -> None:
    # An idle server makes a passport by itself: not of this model from now on.
    site.manage(
        "from models_registry.models import *; Passport.objects.all().delete();"
        "Checkpoint.objects.filter(served_model_name='demo').update(settings={'passport': 'off'})"
    )
    wait_until(lambda: not children_of(site, PASSPORT_CHILD), 60, "the end of a passport that nobody asked for")
    model = f"/models/{site.checkpoint_id('demo')}/?tab=passport"
    page.goto(model)
    page.focus("#make-passport")
    page.keyboard.press("Enter")
    child = held_child(site, PASSPORT_CHILD)
    page.reload()
    page.get_by_role("button", name="Cancel").click()
    os.kill(child, signal.SIGCONT)
    expect(page.locator("#passport")).to_contain_text("cancelled by admin", timeout=60_000)
    wait_until(lambda: not children_of(site, PASSPORT_CHILD), 60, "the end of the process")
    page.locator("main [data-promote]").first.click()
    page.fill("#promote-alias", "chat")
    page.keyboard.press("Enter")
    demand = page.locator("[data-demand='chat']")
    with page.expect_response("**/registry/aliases/chat"):
        demand.check()
    site.manage("from models_registry.models import *; AliasRevision.objects.update(checkpoint=None)")
    page.reload()
    page.locator("main [data-promote]").first.click()
    page.fill("#promote-alias", "chat")
    page.keyboard.press("Enter")
    expect(page.locator("#promote-error")).to_contain_text("'chat' demands a passport, which 'demo' lacks: it has none")
    page.click("#promote-close")
    page.click("#make-passport")
    expect(page.locator("#toasts")).to_contain_text("The passport is made.", timeout=240_000)
    expect(page.locator("#passport")).to_contain_text("5 texts in several scripts came back unchanged")
    page.locator("main [data-promote]").first.click()
    page.fill("#promote-alias", "chat")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("chat means demo now (revision 2).")
    complaints[:] = [text for text in complaints if "409" not in text]


@pytest.fixture
def rows_of_each_state(site: LiveServer, run_directory: Path) -> str:
    """A run with checkpoints in all states and hostile words; returns its id."""
    site.manage(
        "from models_registry.models import *; from models_registry.runs.services import DEFAULTS;"
        "from django.utils import timezone; now = timezone.now();"
        "demo = Checkpoint.objects.get(served_model_name='demo');"
        f"text = {HOSTILE!r} + 'x' * 80;"
        "run = TrainingRun.objects.create(name='nano' + 'o' * 80, directory='/srv/' + text, state='stopped',"
        " reason=text, **{**DEFAULTS, 'prompts': [text]});"
        "sample = {'prompt': text, 'text': text * 3, 'num_tokens': 9, 'finish_reason': 'length', 'error': ''};"
        "[RunStep.objects.create(run=run, name=str(number), number=number, everything='', seen_at=now, state=state,"
        " reason='' if state == 'registered' else text, revision=number, checkpoint=demo, loss=3 / number,"
        " problem=text, samples=[sample], measured_at=now)"
        " for number, state in enumerate(['registered'] * 3 + ['incomplete', 'refused'], 1)];"
        "entries = [{'name': 'chat template', 'state': state, 'words': text * 2, 'figures': {}} for state in"
        " ('passed', 'failed', 'skipped')];"
        "Passport.objects.create(source=demo, source_name='demo', state='done', entries=entries, active_at=now);"
        "Passport.objects.create(source=demo, source_name='demo', state='failed', reason=text, active_at=now);"
        "alias = ModelAlias.objects.create(name='chat' + 't' * 80);"
        "alias.current = AliasRevision.objects.create(alias=alias, number=1, checkpoint=demo, checkpoint_name='demo');"
        "alias.save()"
    )
    return site.manage("from models_registry.models import *; print(TrainingRun.objects.get().pk)").strip()


def test_pages_and_dialogs_fit_and_can_be_read(page: Page, site: LiveServer, rows_of_each_state: str) -> None:
    page.emulate_media(reduced_motion="reduce")  # colours change at once
    for width in (360, 1440):
        page.set_viewport_size({"width": width, "height": 844})
        for path, opener in (
            ("/runs/", "#watch"),
            (f"/runs/{rows_of_each_state}/", "[data-promote] >> nth=0"),
            (f"/models/{site.checkpoint_id('demo')}/?tab=passport", "main [data-promote] >> nth=0"),
        ):
            page.goto(path, wait_until="load")
            for step in ("page", "dialog"):
                assert_fits_and_can_be_read(page)
                if step == "page":
                    page.click(opener)
            outside = page.locator("dialog[open] *").evaluate_all(
                "(all) => all.filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML)"
            )
            assert outside == [], (path, width)


@pytest.mark.parametrize("width", [360, 1440])
def test_the_labels_of_a_curve_stand_beside_it(page: Page, rows_of_each_state: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"/runs/{rows_of_each_state}/")
    expect(page.locator(".curve circle")).to_have_count(5)
    assert page.evaluate(POOR_LABELS) == []
    chosen = page.locator(".curve .chosen").evaluate("(e) => getComputedStyle(e).fill")
    other = page.locator(".curve circle:not(.chosen)").first.evaluate("(e) => getComputedStyle(e).fill")
    assert chosen != other
