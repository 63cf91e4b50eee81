"""The list of models: what a row says, and which rows an address asks for in which order."""

from __future__ import annotations

import cProfile
import pstats
import re
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.models import UsageSpan
from inference.values.states import ModelState
from models_registry import live, model_list, services
from models_registry.models import Checkpoint
from tests.accounts import account

pytestmark = pytest.mark.django_db


@pytest.fixture
def models(hybrid: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Checkpoint]:
    """Three hybrids of other sizes and states: ``large`` is loaded, ``small`` failed, ``middle`` is neither."""
    row = services.checkpoint_register(path=hybrid, served_model_name="middle")
    found = {"middle": Checkpoint.objects.get(pk=row.pk)}
    layers = row.inspection["spec"]["layers"]
    for name, size, chosen in (("large", 1 << 40, layers[2:]), ("small", 7, layers[:1])):
        row.pk, row.served_model_name, row.path, row.size_bytes = uuid.uuid4(), name, f"/nowhere/{name}", size
        row.inspection["spec"]["layers"] = chosen
        row.save(force_insert=True)
        found[name] = Checkpoint.objects.get(pk=row.pk)
    states = {
        str(found["large"].pk): ModelState(str(found["large"].pk), "ready", tokens_per_s=12.5, memory_bytes=1 << 20),
        str(found["small"].pk): ModelState(str(found["small"].pk), "failed", error={"message": "too large"}),
    }
    monkeypatch.setattr(live, "look", lambda: live.Live(states, ()))
    return found


def names(client: Client, query: str = "") -> list[str]:
    text = client.get(f"/models/{query}").content.decode()
    return re.findall(r'class="name-link"[^>]*>([^<]+)<', text)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["large", "middle", "small"]),
        ("?sort=name&order=desc", ["small", "middle", "large"]),
        ("?sort=size", ["large", "middle", "small"]),
        ("?sort=size&order=asc", ["small", "middle", "large"]),
        ("?sort=state", ["large", "small", "middle"]),
        ("?sort=speed&order=asc", ["small", "large", "middle"]),  # middle's isn't known
        ("?sort=speed&order=desc", ["large", "small", "middle"]),
        ("?sort=nonsense&order=sideways", ["large", "middle", "small"]),
        ("?state=ready", ["large"]),
        ("?state=unloaded", ["middle"]),
        ("?state=failed", ["small"]),
        ("?state=loading", []),
        ("?layers=mixed", ["middle"]),
        ("?layers=attention&state=ready", ["large"]),
        ("?layers=recurrent", ["small"]),
        ("?q=MIDD&layers=nonsense", ["middle"]),
    ],
)
def test_rows_that_match_in_their_order(
    browser: Client, models: dict[str, Checkpoint], query: str, expected: list[str]
) -> None:
    UsageSpan.objects.create(begin=timezone.now() - timedelta(hours=2), length_s=900, model="small", tokens_per_s=3.0)
    assert names(browser, query) == expected


def test_a_row_says_what_is_known(browser: Client, models: dict[str, Checkpoint]) -> None:
    now = timezone.now()
    for hours, rate in ((1, 2.0), (3, 41.5), (30, 99.0)):
        UsageSpan.objects.create(
            begin=now - timedelta(hours=hours), length_s=900, model="middle", tokens_per_s=rate, waiting=0
        )
    Checkpoint.objects.filter(served_model_name="middle").update(
        settings={"quant": "int4"}, dtype="float16", updated_at=now
    )
    text = browser.get("/models/").content.decode()
    assert 'aria-label="3 layers: 1 mamba2, 1 mla+moe, 1 attention+mlp"' in text
    assert "up to 41.5" in text and "up to 99" not in text
    assert "int4 when loaded" in text and "too large" in text and "12.5" in text
    assert " style=" not in text


def test_headers_sort_and_keep_the_filters(browser: Client, models: dict[str, Checkpoint]) -> None:
    text = browser.get("/models/?q=a&state=ready&sort=size&order=desc").content.decode()
    assert text.count('aria-sort="') == 1 and 'aria-sort="descending"' in text
    assert 'href="?q=a&amp;state=ready&amp;sort=size&amp;order=asc"' in text
    assert 'href="?q=a&amp;state=ready&amp;sort=name&amp;order=asc"' in text
    assert 'form="filters" name="sort" value="size"' in text
    assert 'hx-get="/models/?q=a&amp;state=ready&amp;sort=size&amp;order=desc"' in text
    assert '<option value="ready" selected>' in text and "1 of 3 models" in text


def test_more_models_need_no_more_queries(browser: Client, models: dict[str, Checkpoint]) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert browser.get("/models/").status_code == 200
        return len(captured)

    queries()
    before = queries()
    row = models["middle"]
    for number in range(30):
        row.pk, row.served_model_name, row.path = uuid.uuid4(), f"copy-{number}", f"/nowhere/{number}"
        row.save(force_insert=True)
    assert queries() == before + 1  # the new ones' inspections, at once
    assert queries() == before


def test_a_row_takes_no_template_of_its_own(browser: Client, models: dict[str, Checkpoint]) -> None:
    """A row's ribbon as a template was a third of what 200 models took."""
    counts = Counter(template.name for template in browser.get("/models/").templates)
    assert [name for name, count in counts.items() if name and count == len(models)] == []


def test_a_row_takes_few_calls_of_python(browser: Client, models: dict[str, Checkpoint]) -> None:
    """A measure of time that other work of the machine does not change; with the serializer there were 1,750."""

    def num_calls() -> int:
        browser.get("/models/")  # what is read once per version of a row
        with cProfile.Profile() as profile:
            browser.get("/models/")
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    before = num_calls()
    row = models["middle"]
    for number in range(20):
        row.pk, row.served_model_name, row.path = uuid.uuid4(), f"copy-{number}", f"/nowhere/{number}"
        row.save(force_insert=True)
    calls = (num_calls() - before) / 20
    assert calls < 1500, calls


def test_damaged_rates_are_not_known() -> None:
    span: dict[str, Any] = {"begin": timezone.now(), "length_s": 60}
    UsageSpan.objects.create(model="one", tokens_per_s=4.0, **span)
    UsageSpan.objects.create(model="two", **span)
    if connection.vendor == "sqlite":
        UsageSpan.objects.create(model="three", tokens_per_s=1.0, **span)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE inference_usagespan SET tokens_per_s = 'fast' WHERE model = 'three'")
    assert model_list.peak_rates() == {"one": 4.0}


def test_a_viewer_gets_no_buttons(client: Client, models: dict[str, Checkpoint]) -> None:
    client.force_login(account("viewer", "viewer"))
    text = client.get("/models/").content.decode()
    assert names(client) == ["large", "middle", "small"] and "data-post" not in text


def test_many_models_are_shown_in_pages(browser: Client, models: dict[str, Checkpoint]) -> None:
    row = models["middle"]
    for number in range(101):
        row.pk, row.served_model_name, row.path = uuid.uuid4(), f"copy-{number:03}", f"/nowhere/{number}"
        row.save(force_insert=True)

    def page(query: str) -> str:
        return browser.get(f"/models/{query}").content.decode()

    assert names(browser) == [f"copy-{number:03}" for number in range(50)]
    first = page("")
    assert "104 models, 1 to 50" in first and 'id="models-next"' in first and 'id="models-back"' not in first
    assert 'href="?sort=size&amp;order=desc"' in page("?offset=50")  # another order begins with its first row
    assert names(browser, "?offset=100") == ["copy-100", "large", "middle", "small"]
    last = page("?q=copy&offset=100")
    assert "101 of 104 models, 101 to 101" in last
    assert 'href="?q=copy&amp;offset=50"' in last and 'id="models-next"' not in last
    assert names(browser, "?q=copy-00&offset=100")[0] == "copy-000"  # fewer match than when the address was written
    assert names(browser, "?offset=-1") == names(browser, "?offset=nonsense") == names(browser)
