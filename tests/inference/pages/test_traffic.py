"""Curves, rows by model and the prompt cache of the last hour or day."""

from __future__ import annotations

import orjson
import pytest
from django.http import QueryDict
from django.utils import timezone

from inference.models import UsageSpan
from inference.pages.traffic import cache_parts, traffic
from inference.records.usage_spans import DAY, HOUR, MINUTE, QUARTER, last_begin

pytestmark = pytest.mark.django_db


def span(length_s: int, model: str = "", **values) -> UsageSpan:
    begin = values.pop("begin", None) or last_begin(timezone.now(), length_s)
    return UsageSpan.objects.create(begin=begin, length_s=length_s, model=model, **values)


def fill() -> None:
    for model in ("", "quick", "slow"):
        for length_s in (HOUR, DAY):
            p95 = {HOUR: {"slow": 9.0}, DAY: {"slow": 3.0}}[length_s].get(model, 0.2)
            span(length_s, model, requests=30, failures=2, ttft_p50_s=0.1, ttft_p95_s=p95, prompt_tokens=100,
                 cached_tokens=25, cache_outcomes=orjson.dumps({"hit": 3, "cold": 7, "odd": 4}).decode())  # fmt: skip
        for length_s in (MINUTE, QUARTER):
            span(length_s, model, requests=3, ttft_p50_s=0.1, ttft_p95_s=0.2, tokens_per_s=12.5, waiting=2.0)


def test_the_hour_is_drawn_in_minutes_and_its_models_are_compared_with_the_day() -> None:
    fill()
    found = traffic(QueryDict(""))
    assert [chart.title for chart in found["charts"]] == ["First token", "Tokens per second", "Waiting requests"]
    assert found["charts"][0].words == "p50 100 ms (dashed), p95 200 ms"
    assert len(found["charts"][0].marks) == 60
    assert found["charts"][0].marks[-1].words == "1 min 0 s ago, p95 200 ms, p50 100 ms"
    rows = {row["item"].model: row for row in found["rows"]}
    assert [rows[name]["is_slow"] for name in ("quick", "slow")] == [False, True]
    assert (rows["quick"]["peak"], rows["quick"]["waiting"], rows["quick"]["cached"]) == (12.5, 2.0, 25)
    assert found["cache"]["number"] == 10
    assert [part["number"] for part in found["cache"]["parts"]] == [7, 3]


def test_the_day_is_drawn_in_quarters_of_an_hour() -> None:
    fill()
    found = traffic(QueryDict("span=day&model=slow"))
    assert (found["span"], found["chosen"], len(found["charts"][0].marks)) == ("day", "slow", 96)
    assert found["charts"][0].words == "p50 100 ms (dashed), p95 3.0 s"
    assert not any(row["is_slow"] for row in found["rows"])


@pytest.mark.parametrize("query", ["", "span=week&model=gone", "span=&model=%00"])
def test_an_empty_server_and_odd_addresses_have_nothing_to_draw(query: str) -> None:
    found = traffic(QueryDict(query))
    assert (found["span"], found["chosen"], found["charts"], found["rows"], found["cache"]) == (
        "hour",
        "",
        [],
        [],
        None,
    )


def test_damaged_spans_are_left_out() -> None:
    fill()
    UsageSpan.objects.filter(length_s=HOUR, model="slow").update(cache_outcomes="{")
    assert [row["item"].model for row in traffic(QueryDict(""))["rows"]] == ["quick"]
    UsageSpan.objects.filter(length_s=HOUR).update(cache_outcomes='{"hit": {}, "cold": "7"}')
    assert traffic(QueryDict(""))["cache"]["parts"] == []


def test_without_outcomes_there_are_no_parts() -> None:
    assert cache_parts(UsageSpan(cache_outcomes="{}"))["number"] == 0
