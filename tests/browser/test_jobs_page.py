"""Jobs and batches in Chromium: queued, run, shown, cancelled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.actions import HOSTILE
from tests.live.conftest import LiveServer, wait_until

CLICK_TWICE = """() => {
  document.querySelector("#retry").click();
  setTimeout(() => {
    document.querySelector("[name=token]").value = "f".repeat(16); // as when the region is drawn again
    document.querySelector("#retry").click();
  }, 100);
}"""

CHANGED_FORMS = """() => {
  const place = document.createElement("div");
  const fields = {
    number: '<input type="number" value="3">',
    box: '<input type="checkbox" checked>',
    radio: '<input type="radio" name="r" value="a" checked><input type="radio" name="r" value="b">',
    list: "<select><option disabled>none</option><option>a</option><option>b</option></select>",
    named: "<select><option>a</option><option selected>b</option></select>",
    several: "<select multiple><option>a</option><option selected>b</option></select>",
  };
  place.innerHTML = Object.entries(fields).map(([id, html]) => `<form hx-preserve id="${id}">${html}</form>`).join("");
  document.body.append(place);
  const forms = [...place.children];
  const preserved = () => {
    const ids = forms.map((form) => form.id);
    const swap = new CustomEvent("htmx:beforeSwap", { detail: { shouldSwap: true, target: place } });
    document.body.dispatchEvent(swap);
    const left = forms.map((form) => form.id).filter(Boolean);
    forms.forEach((form, i) => (form.id = ids[i]));
    return left;
  };
  const found = [preserved()];
  const [number, box, radio, list, named, several] = forms.map((form) => form.lastElementChild);
  number.value = "4";
  box.checked = false;
  radio.checked = true;
  list.value = "b";
  named.value = "a";
  several.options[0].selected = true;
  found.push(preserved());
  place.remove();
  return found;
}"""

pytestmark = pytest.mark.browser


def test_jobs_are_queued_run_and_shown(page: Page) -> None:
    page.goto("/jobs/")
    page.click("#new")
    page.fill("#job-prompt", f"one\n{HOSTILE}\n\nthree")
    page.check("#job-lines")
    page.fill("#job-max", "12")
    page.fill("#job-label", HOSTILE)
    page.click("#submit-dialog >> text=Queue it")
    expect(page.locator("#toasts")).to_contain_text("3 jobs are queued")
    page.fill("#label", HOSTILE)
    expect(page.locator("#counts")).to_have_text("3 succeeded")
    page.locator("#jobs tbody a").first.click()
    expect(page.locator("#job")).to_contain_text("succeeded")
    expect(page.locator("pre[aria-label=Output]")).not_to_be_empty()
    expect(page.locator("pre[aria-label=Prompt]")).to_contain_text(re.compile("one|three|img src"))
    expect(page.locator("#job")).to_contain_text("max_tokens")
    address = page.url
    page.click("#retry")
    expect(page).not_to_have_url(address)
    expect(page.locator("h1")).to_contain_text("Job ")
    expect(page.locator("#job")).to_contain_text("succeeded")
    page.goto("/jobs/")
    page.select_option("#state", "failed")
    expect(page.locator("#jobs")).to_contain_text("No job matches")
    page.goto("/")
    expect(page.locator("#jobs")).to_contain_text(HOSTILE)


def test_a_failed_job_shows_its_error(page: Page, site: LiveServer) -> None:
    site.manage(
        "from inference.models import GenerationJob; from django.utils import timezone; import json, uuid;"
        "plan = {'endpoint': 'completion', 'model': 'demo', 'prompts': [{'text': 'What broke?'}],"
        " 'params': {'max_tokens': 4}};"
        "error = {'code': 'prompt_too_long', 'message': 'the prompt has 5000 tokens; at most 1024 fit.'};"
        "GenerationJob.objects.create(job_id=uuid.UUID(int=7), tenant='local', digest='x', endpoint='completion',"
        " model='demo', checkpoint_id=uuid.uuid4(), plan=json.dumps(plan), state='failed', error=json.dumps(error),"
        " created_at=timezone.now(), finished_at=timezone.now())"
    )
    page.goto("/jobs/?state=failed")
    page.click("#jobs tbody a")
    expect(page.locator("#job .note.bad")).to_contain_text("the prompt has 5000 tokens")
    expect(page.locator("pre[aria-label=Prompt]")).to_have_text("What broke?")
    expect(page.locator("#retry")).to_have_text("Try again")
    site.manage("from inference.models import GenerationJob; GenerationJob.objects.filter(digest='x').delete()")


def test_a_job_can_be_cancelled(page: Page, site: LiveServer) -> None:
    page.goto("/jobs/")
    page.click("#new")
    page.fill("#job-prompt", "\n".join(f"line {n}" for n in range(40)))
    page.check("#job-lines")
    page.fill("#job-max", "900")
    page.fill("#job-label", "long")
    page.click("#submit-dialog >> text=Queue it")
    expect(page.locator("#submit-dialog")).to_be_hidden()
    page.fill("#label", "long")
    # Rows of other tests are gone and all of these are stored, so that none is left to run unnoticed.
    expect(page.locator("#jobs tbody tr")).to_have_count(40)
    with site.held_worker():  # alone a job is through in half a second
        page.locator("#jobs tbody tr").first.get_by_role("button", name="Cancel").click()
        page.evaluate(
            """async () => {
              const { call } = await import("/static/registry/kit.js");
              const { data } = await call("GET", "/api/jobs?batch_label=long&limit=100");
              await Promise.all(data.slice(1).map(({ id }) => call("POST", `/api/jobs/${id}/cancel`)));
            }"""
        )
    expect(page.locator("#counts")).to_have_text(re.compile(r"^(\d+ succeeded, )?\d+ cancelled$"))


def test_the_list_is_the_one_for_the_newest_filters(page: Page) -> None:
    """What changes while a list is on its way is asked for behind it."""
    page.goto("/jobs/")
    asked: list[str] = []
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        # A list without filters: one that changed before the page was connected.
        if route.request.headers.get("hx-target") != "jobs-region" or "label=" not in route.request.url:
            return route.continue_()
        asked.append(route.request.url.partition("?")[2])
        return route.continue_() if held else held.append(route)

    page.route("**/jobs/**", hold_first)
    page.fill("#label", "of before")
    wait_until(lambda: page.title() and held, 60, "the list for the first filter")
    page.fill("#label", "newest")
    expect(page).to_have_url(re.compile("label=newest"))
    page.evaluate("document.body.dispatchEvent(new CustomEvent('live:jobs'))")
    assert asked == ["label=of+before"]
    held[0].continue_()
    wait_until(lambda: page.title() and len(asked) > 1, 60, "the list behind it")
    expect(page.locator("#jobs")).to_contain_text("No job matches")
    assert set(asked[1:]) == {"label=newest"}
    # An older page stays the older one.
    job_id = page.evaluate(
        """async () => {
          const { call } = await import("/static/registry/kit.js");
          const body = { model: "demo", prompt: "one", max_tokens: 1 };
          return (await call("POST", "/api/jobs", { jobs: [{ endpoint: "completion", body }] })).data[0].id;
        }"""
    )
    page.goto(f"/jobs/?state=failed&after={job_id}")
    with page.expect_request(lambda request: request.headers.get("hx-target") == "jobs-region") as found:
        page.evaluate("document.body.dispatchEvent(new CustomEvent('live:jobs'))")
    assert found.value.url.endswith(f"/jobs/?state=failed&after={job_id}")


def test_batches_are_shown_with_their_progress_and_files(page: Page, site: LiveServer) -> None:
    from tests.live.test_batches import lines_of, start

    page.goto("/jobs/")
    expect(page.locator("#batches-region")).to_contain_text("No batches yet.")
    start(site, lines_of(3, max_tokens=4))
    row = page.locator("#batches tbody tr").first
    expect(row).to_contain_text("completed")
    expect(row).to_contain_text("3 of 3")
    expect(row).to_contain_text("12")
    with page.expect_download() as found:
        row.get_by_role("link", name="output").click()
    assert len(Path(found.value.path()).read_text().splitlines()) == 3
    page.select_option("#state", "failed")
    page.fill("#batch", "no-such-batch")
    expect(page.locator("#batches-region")).to_contain_text("No batch matches.")
    expect(page).to_have_url(re.compile(r"\?state=failed&batch=no-such-batch$"))
    page.fill("#batch", "demo")
    expect(row).to_contain_text("3 of 3")
    expect(page.locator("#batch")).to_be_focused()
    page.fill("#batch", "")
    start(site, lines_of(400, max_tokens=400))
    row.get_by_role("button", name="Cancel").click()
    expect(page.locator("#batches tbody tr").first).to_contain_text("cancelled")


def test_a_batch_has_a_page_and_its_failed_lines_run_again(page: Page, site: LiveServer) -> None:
    from tests.live.test_batches import lines_of, start

    lines = lines_of(3, max_tokens=4)
    lines[1] = {**lines[1], "custom_id": HOSTILE, "body": {**lines[1]["body"], "temperature": 77}}
    start(site, lines)
    page.goto("/jobs/")
    page.locator("#batches tbody a").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#batch-head")).to_contain_text("All lines have run.")
    expect(page.locator("#batch-head")).to_contain_text("3 of 3, 1 failed")
    page.click("#example-1")
    expect(page.locator("#batch-lines .note.bad")).to_contain_text("temperature")
    expect(page.locator("#batch-lines")).to_contain_text(HOSTILE)
    page.click("#open-1")
    expect(page.locator("#open-1")).to_have_attribute("aria-expanded", "true")
    expect(page.locator("pre[aria-label=Answer]")).not_to_be_empty()
    address = page.url.split("?")[0]
    sent: list[Route] = []
    page.route("**/retry/", lambda route: sent.append(route))
    page.evaluate(CLICK_TWICE)
    page.wait_for_timeout(500)
    assert len(sent) == 1
    sent[0].continue_()
    expect(page.locator("#retry-of")).to_be_visible()
    expect(page.locator("#batch-head")).to_contain_text("1 of 1, 1 failed")
    page.locator("#retry-of").click()
    expect(page).to_have_url(address)
    expect(page.locator("#batch-head")).to_contain_text("were run again")


def test_a_batch_is_paused_resumed_and_reordered(page: Page, site: LiveServer) -> None:
    from tests.live.test_batches import lines_of, look, start

    batch_id = start(site, lines_of(400, max_tokens=400))
    page.goto(f"/batches/{batch_id}/")
    expect(page.locator("#batch-priority")).to_contain_text("0")
    page.click("#pause")
    expect(page.locator("#toasts")).to_contain_text("The batch is paused; running lines end.")
    expect(page.locator("#batch-head")).to_contain_text("It is paused")
    page.focus("#priority")
    set_priority(site, batch_id, 5)
    expect(page.locator("#batch-priority")).to_contain_text("5")
    expect(page.locator("#priority")).to_have_value("5")  # somebody else's, as nothing was typed
    expect(page.locator("#priority")).to_be_focused()
    page.fill("#priority", "7")  # stays, however often the region is drawn again
    set_priority(site, batch_id, 4)
    expect(page.locator("#batch-priority")).to_contain_text("4")
    expect(page.locator("#priority")).to_have_value("7")
    page.click("#resume")
    expect(page.locator("#pause")).to_be_visible()
    expect(page.locator("#priority")).to_have_value("7")
    page.locator("#priority").press("Enter")
    expect(page.locator("#batch-priority")).to_contain_text("7")
    assert look(site, batch_id)["priority"] == 7
    page.click("#cancel")
    page.click("dialog >> text=Cancel the batch")
    expect(page.locator("#batch-head")).to_contain_text("It was cancelled")
    expect(page.locator("#priority-form")).to_have_count(0)


def set_priority(site: LiveServer, batch_id: str, priority: int) -> None:
    """Change a batch's priority as somebody else does, beside the page."""
    url = f"{site.url}/v1/batches/{batch_id}/priority"
    httpx.post(url, json={"priority": priority}, timeout=30).raise_for_status()


def test_a_file_is_checked_before_it_is_queued(page: Page) -> None:
    from tests.live.test_batches import lines_of

    def chosen(*lines: Any) -> dict[str, Any]:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        return {"name": "in.jsonl", "mimeType": "application/jsonl", "buffer": text.encode()}

    good, odd = lines_of(2, max_tokens=4)
    page.goto("/jobs/")
    page.set_input_files("#batch-file", [chosen(good, HOSTILE, good)])
    expect(page.locator("#report .note.bad")).to_contain_text("2 problems")
    expect(page.locator("#problems tbody tr")).to_have_count(2)
    expect(page.locator("#queue")).to_be_hidden()
    with page.expect_file_chooser() as found:
        page.focus("#choose-file")
        page.keyboard.press("Enter")
    found.value.set_files([chosen(good, {**odd, "body": {**odd["body"], "model": HOSTILE}})])
    expect(page.locator("#report")).to_contain_text("1 line of 2 would fail")
    expect(page.locator("#report")).to_contain_text(HOSTILE)
    expect(page.locator("#queue-label")).to_have_value("in")
    page.locator("#queue-it").press("Enter")
    page.wait_for_url("**/batches/batch_*/")
    expect(page.locator("#batch-head")).to_contain_text("2 of 2, 1 failed")


def test_a_changed_form_of_any_kind_stays_when_its_region_is_drawn_again(page: Page) -> None:
    """Changes of a list, a box or a choice were lost."""
    page.goto("/jobs/")
    assert page.evaluate(CHANGED_FORMS) == [[], ["number", "box", "radio", "list", "named", "several"]]
