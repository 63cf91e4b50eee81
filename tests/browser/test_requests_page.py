"""Requests in Chromium: running ones, one as a waterfall, and replays beside what they repeat."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from inference.dialects.openai.requests import plan_from_body
from tests.browser.actions import HOSTILE, assert_fits_and_can_be_read
from tests.browser.conftest import Complaints
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser
PHASES = {"queue": 0.2, "swap": 1.5, "prepare": 0.01, "prefill": 0.2, "decode": 0.8, "delivery": 0.01}
NAMES = ("chatcmpl-kept", "chatcmpl-bare")


def rows() -> list[dict[str, Any]]:
    """A request whose contents were kept, and one without."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 8, "temperature": 0}
    plan = plan_from_body("chat", body)
    kept = {
        "prompt": json.dumps(list(plan.prompts)), "plan": json.dumps({**plan.to_dict(), "prompts": []}),
        "output": json.dumps([f"{HOSTILE} was the answer"]),
        "phases": json.dumps({"seconds": PHASES, "evicted": "other"}),
    }  # fmt: skip
    fixed = {
        "tenant": "local", "endpoint": "chat", "model": "earlier", "outcome": "completed", "duration_s": 2.72,
        "queue_s": 1.71, "engine_s": 1.0, "ttft_s": 1.91, "prompt_tokens": 9, "completion_tokens": 8,
    }  # fmt: skip
    return [{"request_id": name, **fixed, **(kept if name == NAMES[0] else {})} for name in NAMES]


@pytest.fixture
def logged(site: LiveServer) -> Iterator[None]:
    site.manage(
        f"import json; from django.utils import timezone; from inference.models import UsageRecord\n"
        f"for row in json.loads({json.dumps(rows())!r}):\n"
        "    UsageRecord.objects.create(created_at=timezone.now(), **row)"
    )
    yield
    site.manage(
        "from inference.models import Batch, GenerationJob, UsageRecord; "
        f"UsageRecord.objects.filter(request_id__in={NAMES}).delete(); Batch.objects.all().delete(); "
        "GenerationJob.objects.filter(batch_label__startswith='replay of').delete()"
    )


@pytest.mark.parametrize("width", [360, 1440])
def test_a_request_is_read_replayed_and_compared(
    open_page: Callable[..., Page], logged: None, complaints: Complaints, width: int
) -> None:
    page = open_page(width)
    complaints.watch(page)
    page.goto(f"/requests/?q={NAMES[0]}")
    assert_fits_and_can_be_read(page, with_axe=True)
    page.locator(f"#request-{NAMES[0]}").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".note.warn")).to_contain_text("other had to be unloaded first")
    expect(page.locator("main tbody tr")).to_have_count(len(PHASES))
    assert_fits_and_can_be_read(page, with_axe=True)
    page.locator("#replay-model").focus()
    page.keyboard.type("demo")
    page.keyboard.press("Enter")
    expect(page.locator("#replay")).to_contain_text("succeeded")
    expect(page.locator("mark").first).to_be_visible()
    expect(page.locator("#replay pre").first).to_contain_text(HOSTILE)
    assert_fits_and_can_be_read(page, with_axe=True)
    page.goto(f"/requests/{NAMES[1]}/")
    expect(page.locator("main")).to_contain_text("weren't kept")
    assert complaints == []


@pytest.mark.parametrize("width", [360, 1440])
def test_the_requests_of_a_day_are_replayed_and_an_alias_follows(
    open_page: Callable[..., Page], site: LiveServer, logged: None, complaints: Complaints, width: int
) -> None:
    page = open_page(width)
    complaints.watch(page)
    page.goto("/requests/")
    page.locator("#new-replay summary").focus()
    page.keyboard.press("Enter")
    page.fill("#replay-source", "earlier")
    page.fill("#replay-candidate", "demo")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("earlier replayed on demo")
    expect(page.locator("main")).to_contain_text("1 left out")
    expect(page.locator("#replays tbody a")).to_have_count(1)
    expect(page.locator("#replays .page-head")).to_contain_text("completed")
    assert_fits_and_can_be_read(page, with_axe=True)
    page.fill("#alias", "prod")
    page.locator("#promote").focus()
    with page.expect_navigation():  # the page is the same but for the alias
        page.keyboard.press("Enter")
    expect(page.locator("#replays tbody a")).to_have_count(1)
    page.locator("#replays tbody a").click()
    expect(page.locator("mark").first).to_be_visible()
    expect(page.locator("h1")).to_have_text("earlier and demo")
    assert_fits_and_can_be_read(page, with_axe=True)
    site.manage("from models_registry.aliases import alias_delete; assert alias_delete(name='prod')")
    assert complaints == []


def test_a_running_request_is_followed_and_cancelled(page: Page, site: LiveServer) -> None:
    statuses: list[int] = []
    # More choices than the engine computes together: half a minute, however fast this test is.
    endless = {"max_tokens": 1000, "ignore_eos": True, "n": 128, "temperature": 1}
    sending = threading.Thread(target=lambda: statuses.append(site.complete(**endless).status_code))
    page.goto("/requests/")
    sending.start()
    row = page.locator("#running-region tbody tr")
    expect(row.first).to_contain_text("running")
    expect(row.first).to_contain_text("demo")
    page.locator("#running-region button").first.click()
    page.locator("dialog[open] button[value=yes]").click()
    sending.join(60)
    assert statuses and statuses[0] >= 400
    expect(page.locator("#running-region")).to_contain_text("Nothing runs")
