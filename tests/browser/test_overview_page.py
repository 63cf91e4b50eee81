"""The overview with the requests of a day, in Chromium: curves, without scripts too, live, and clean for axe."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.actions import await_loaded, axe_findings, schemes_of, show_texts
from tests.live.conftest import LiveServer

pytestmark = pytest.mark.browser

FILL = """
from datetime import timedelta
from random import Random
from django.utils import timezone
from inference.models import UsageRecord, UsageSpan
from inference.records.span_rows import spans_write
from inference.records.usage_spans import Load, MINUTE, PERIODS, missing_begins
draw, now = Random(0), timezone.now()
UsageSpan.objects.all().delete()
UsageRecord.objects.bulk_create(
    UsageRecord(
        request_id=f"browser-{number}", tenant="local", endpoint="chat", model=("demo", "other")[number % 2],
        outcome="completed" if number % 40 else "engine_dead", prompt_tokens=200, cached_tokens=draw.choice((0, 120)),
        completion_tokens=90, ttft_s=draw.lognormvariate(-2, 1), itl_s=0.03 * draw.lognormvariate(0, 0.3),
        duration_s=4.0, cache_outcome=draw.choice(("hit", "cold", "diverged", "evicted")),
        created_at=now - timedelta(minutes=1440 * draw.random() ** 3),
    )
    for number in range(3000)
)
for length_s in sorted(PERIODS):
    for begin in missing_begins(now, length_s):
        loads = {"demo": Load(draw.uniform(20, 60), draw.uniform(0, 3))} if length_s == MINUTE else None
        spans_write(begin=begin, length_s=length_s, loads=loads)
"""
NEXT = """
from datetime import timedelta
from django.db import transaction
from inference.models import UsageSpan
from inference.records.usage_spans import HOUR, MINUTE
spans = UsageSpan.objects.filter(length_s=HOUR)
with transaction.atomic():
    newest = spans.latest("begin").begin
    rows = [*spans.filter(begin=newest), *spans.filter(begin=newest, model="other")]
    rows[-1].model = "third"
    for row in rows:
        row.pk, row.begin = None, newest + timedelta(seconds=MINUTE)
        if row.model == "other":
            row.requests = 123456
    UsageSpan.objects.bulk_create(rows)
"""
"""The span that the server would write next. It leaves alone what is there, so the page shows this one for about a
minute at least; rows of the newest span are shown no longer than until the server writes the next one."""
EMPTY = """
from inference.models import UsageRecord, UsageSpan
UsageRecord.objects.filter(request_id__startswith="browser-").delete()
UsageSpan.objects.all().delete()
"""


@pytest.fixture(scope="module", autouse=True)
def a_day_of_requests(site: LiveServer) -> Iterator[None]:
    site.manage(FILL)
    yield
    site.manage(EMPTY)


def test_curves_say_their_values_and_follow_the_chosen_model_and_span(page: Page) -> None:
    page.goto("/")
    charts = page.locator("#traffic figure")
    expect(charts).to_have_count(4)
    expect(charts.first).to_contain_text("First token")
    assert charts.first.locator("polyline").count() >= 2
    marks = charts.first.locator("title")
    expect(marks).to_have_count(60)
    assert "p95" in marks.nth(40).text_content()
    page.click("#span-day")
    expect(page.locator("#span-day")).to_have_attribute("aria-current", "true")
    expect(charts.first.locator("title")).to_have_count(96)
    page.click("#traffic tbody a:has-text('demo')")
    expect(page.locator("#traffic h2").first).to_have_text("Requests of demo")
    expect(page.locator("#span-day")).to_have_attribute("aria-current", "true")
    page.click("#all-models")
    expect(page.locator("#traffic h2").first).to_have_text("Requests")
    page.click("#traffic a:has-text('engine_dead') >> nth=0")
    expect(page.locator("main")).to_contain_text("engine_dead")


def test_a_new_span_is_drawn_without_a_reload(page: Page, site: LiveServer) -> None:
    page.goto("/")
    page.evaluate("window.stays = true")
    site.manage(NEXT)
    expect(page.locator("#traffic")).to_contain_text("123,456")
    expect(page.locator("#traffic tbody")).to_contain_text("third")
    assert page.evaluate("window.stays") is True


@pytest.mark.parametrize(("width", "schemes"), [(360, ("light", "dark")), (1440, ("dark", "light"))])
def test_it_is_clean_and_fits(open_page: Callable[..., Page], width: int, schemes: tuple[str, str]) -> None:
    page = open_page(width, 900)
    for path in ("/", "/?span=day&model=demo", "/keys/"):
        page.emulate_media(color_scheme=schemes[0])
        page.goto(path)
        for scheme, rules in schemes_of(page, *schemes):
            assert axe_findings(page, rules) == [], (path, scheme)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (path, scheme)


def test_it_can_be_read_without_scripts(chromium: Browser, site: LiveServer, session_state: dict) -> None:
    context = chromium.new_context(base_url=site.url, storage_state=session_state, java_script_enabled=False)
    page = context.new_page()
    await_loaded(site)
    texts = ("Healthy", "By model", "Prompt cache", "Recent errors", "What changed", "reserved states", "weights")
    show_texts(page, "/", texts)
    expect(page.locator("#traffic figure svg")).to_have_count(4)
    page.click("#span-day")
    expect(page.locator("#traffic figure svg")).to_have_count(4)
    context.close()
