"""Spans of usage against a computation by hand, and exact percentiles."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from inference.models import UsageRecord, UsageSpan
from inference.records.span_rows import percentiles, span_rows, spans_write
from inference.records.usage_spans import DAY, HOUR, MINUTE, QUARTER, Load

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SECONDS = st.floats(0, 100, allow_nan=False)
REASONS = ("", "hit", "cold", "diverged", "evicted")


def nearest_rank(values: list[float], percent: int) -> float | None:
    """The smallest value that at least ``percent`` percent of the values don't exceed."""
    return next((v for v in sorted(values) if sum(w <= v for w in values) * 100 >= percent * len(values)), None)


def record(number: int, **values: object) -> UsageRecord:
    filled = {
        "tenant": "local", "endpoint": "chat", "model": "tiny", "outcome": "completed", "duration_s": 1.0,
        "created_at": NOON, **values,
    }  # fmt: skip
    return UsageRecord(request_id=f"r{number}", **filled)


@given(st.lists(SECONDS, min_size=1, max_size=80))
def test_percentiles_are_values_of_nearest_rank(values: list[float]) -> None:
    assert percentiles(array("d", values)) == (nearest_rank(values, 50), nearest_rank(values, 95))


def test_no_values_have_no_percentiles() -> None:
    assert percentiles(array("d")) == (None, None)


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(("a", "b")),
            "outcome": st.sampled_from(("completed", "cancelled", "generation_failed")),
            "cache_outcome": st.sampled_from(REASONS),
            "prompt_tokens": st.integers(0, 50),
            "cached_tokens": st.integers(0, 50),
            "completion_tokens": st.integers(0, 50),
            "ttft_s": st.none() | SECONDS,
            "itl_s": st.none() | SECONDS,
            "after_s": st.integers(-5, 65),
        }
    ),
    max_size=30,
)


class AgainstByHand(TestCase):
    @settings(max_examples=40)
    @given(RECORDS)
    def test_a_span_has_what_its_records_say(self, drawn: list[dict]) -> None:
        UsageRecord.objects.bulk_create(
            record(number, **{k: v for k, v in item.items() if k != "after_s"},
                   created_at=NOON + timedelta(seconds=item["after_s"]))
            for number, item in enumerate(drawn)
        )  # fmt: skip
        inside = [item for item in drawn if 0 <= item["after_s"] < MINUTE]
        rows = span_rows(begin=NOON, length_s=MINUTE)
        assert [row.model for row in rows] == (["", *sorted({item["model"] for item in inside})] if inside else [])
        for row in rows:
            mine = [item for item in inside if row.model in ("", item["model"])]
            assert row.requests == len(mine)
            assert row.failures == sum(item["outcome"] == "generation_failed" for item in mine)
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
                assert getattr(row, name) == sum(item[name] for item in mine)
            for name in ("ttft", "itl"):
                values = [item[f"{name}_s"] for item in mine if item[f"{name}_s"] is not None]
                assert getattr(row, f"{name}_p50_s") == nearest_rank(values, 50)
                assert getattr(row, f"{name}_p95_s") == nearest_rank(values, 95)
            outcomes = Counter(item["cache_outcome"] for item in mine if item["cache_outcome"])
            assert json.loads(row.cache_outcomes) == outcomes


@pytest.mark.django_db
def test_what_the_workers_report_stands_beside_the_records() -> None:
    record(1).save()
    rows = span_rows(begin=NOON, length_s=MINUTE, loads={"busy": Load(8.0, 2.0), "idle": Load(0.0, 0.0)})
    assert [(row.model, row.requests, row.tokens_per_s, row.waiting) for row in rows] == [
        ("", 1, 8.0, 2.0), ("busy", 0, 8.0, 2.0), ("tiny", 1, 0.0, 0.0),
    ]  # fmt: skip
    assert {row.waiting for row in span_rows(begin=NOON, length_s=MINUTE)} == {None}
    assert span_rows(begin=NOON + timedelta(hours=1), length_s=MINUTE, loads={"idle": Load(0.0, 0.0)}) == []


@pytest.mark.django_db
def test_a_quarter_is_the_mean_of_its_minutes() -> None:
    for minute, tokens in ((0, 30.0), (14, 60.0), (15, 1000.0)):
        begin = NOON + timedelta(minutes=minute)
        spans_write(begin=begin, length_s=MINUTE, loads={"tiny": Load(tokens, 3.0)})
    total, tiny = span_rows(begin=NOON, length_s=QUARTER)
    assert (tiny.model, tiny.tokens_per_s, tiny.waiting) == ("tiny", 6.0, 0.4)
    assert (total.tokens_per_s, total.requests) == (6.0, 0)


@pytest.mark.django_db
@pytest.mark.parametrize("length_s", [HOUR, DAY])
def test_hours_and_days_have_percentiles_over_all_of_their_requests(length_s: int) -> None:
    for number in range(20):
        record(number, ttft_s=number / 10, created_at=NOON + timedelta(seconds=length_s * number / 20)).save()
    total, _ = span_rows(begin=NOON, length_s=length_s)
    assert (total.requests, total.ttft_p50_s, total.ttft_p95_s, total.tokens_per_s) == (20, 0.9, 1.8, None)


@pytest.mark.django_db
def test_a_span_is_written_once() -> None:
    record(1).save()
    assert spans_write(begin=NOON, length_s=MINUTE) == 2
    record(2).save()
    spans_write(begin=NOON, length_s=MINUTE)
    assert list(UsageSpan.objects.values_list("model", "requests")) == [("", 1), ("tiny", 1)]


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases refuse such values")
def test_damaged_records_count_as_far_as_they_can_be_read() -> None:
    for number in range(3):
        record(number, ttft_s=1.0, itl_s=0.1, prompt_tokens=5).save()
    with connection.cursor() as cursor:
        cursor.execute(
            "update inference_usagerecord set ttft_s = 'late', itl_s = x'00', prompt_tokens = 'many', "
            "cache_outcome = x'ff', model = x'00', outcome = 7 where request_id = 'r1'"
        )
    total, *_ = span_rows(begin=NOON, length_s=MINUTE)
    assert (total.requests, total.failures, total.prompt_tokens, total.ttft_p95_s) == (3, 1, 10, 1.0)
    assert spans_write(begin=NOON, length_s=MINUTE) == 3


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases refuse such values")
def test_numbers_of_damaged_records_that_have_no_room_in_a_sum_count_as_nothing() -> None:
    for number in range(2):
        record(number, prompt_tokens=5).save()
    with connection.cursor() as cursor:
        cursor.execute(f"update inference_usagerecord set prompt_tokens = {2**63 - 1} where request_id = 'r1'")
    assert spans_write(begin=NOON, length_s=MINUTE) == 2
    assert set(UsageSpan.objects.values_list("requests", "prompt_tokens")) == {(2, 5)}


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases refuse such values")
@pytest.mark.parametrize("damaged", ["x'00'", f"'{'m' * 200}'"])
def test_all_records_of_a_damaged_name_count(damaged: str) -> None:
    for number in range(3):
        record(number).save()
    with connection.cursor() as cursor:
        cursor.execute(f"update inference_usagerecord set model = {damaged}")
    assert [row.requests for row in span_rows(begin=NOON, length_s=MINUTE)] == [3, 3]


@pytest.mark.django_db
def test_records_without_a_name_count_in_the_sum_only() -> None:
    record(1, model="", prompt_tokens=7).save()
    rows = span_rows(begin=NOON, length_s=MINUTE)
    assert [(row.model, row.requests, row.prompt_tokens) for row in rows] == [("", 1, 7)]
    record(2, prompt_tokens=5).save()
    rows = span_rows(begin=NOON, length_s=MINUTE)
    assert [(row.model, row.requests, row.prompt_tokens) for row in rows] == [("", 2, 12), ("tiny", 1, 5)]


def test_a_million_values_are_ordered_in_part_only() -> None:
    values = array("d", (float(n * 7919 % 100_003) for n in range(100_003)))
    assert percentiles(values) == (float(math.ceil(100_003 * 0.5) - 1), float(math.ceil(100_003 * 0.95) - 1))
