"""Which spans are kept, which are missing, and which go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection

from inference.models import UsageSpan
from inference.records.usage_spans import (
    DAY,
    HOUR,
    MINUTE,
    PERIODS,
    QUARTER,
    kept_begins,
    last_begin,
    missing_begins,
    spans_read,
    spans_sweep,
)

NOW = datetime(2026, 1, 2, 12, 31, 4, tzinfo=UTC)


def at(hour: int, minute: int, day: int = 2) -> datetime:
    return datetime(2026, 1, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("length_s", "begin", "number"),
    [(MINUTE, at(12, 29), 60), (QUARTER, at(12, 15), 96), (HOUR, at(11, 30), 1), (DAY, at(12, 30, 1), 1)],
)
def test_the_newest_span_is_over_since_some_seconds(length_s: int, begin: datetime, number: int) -> None:
    assert last_begin(NOW, length_s) == begin
    begins = kept_begins(NOW, length_s)
    assert (len(begins), begins[-1]) == (number, begin)
    assert {b - a for a, b in pairwise(begins)} <= {timedelta(seconds=PERIODS[length_s])}
    assert last_begin(NOW + timedelta(seconds=1), MINUTE) == at(12, 30)


@pytest.mark.django_db
def test_missing_spans_are_those_without_a_row() -> None:
    UsageSpan.objects.create(begin=at(12, 29), length_s=MINUTE)
    UsageSpan.objects.create(begin=at(12, 28), length_s=QUARTER)
    assert missing_begins(NOW, MINUTE) == kept_begins(NOW, MINUTE)[:-1]
    assert missing_begins(NOW, HOUR) == [at(11, 30)]


@pytest.mark.django_db
def test_the_table_is_bounded() -> None:
    for length_s in PERIODS:
        for number in range(-3, 200):
            begin = last_begin(NOW, length_s) - timedelta(seconds=PERIODS[length_s] * number)
            UsageSpan.objects.create(begin=begin, length_s=length_s)
    removed = spans_sweep(NOW)
    assert UsageSpan.objects.count() == 203 * len(PERIODS) - removed
    # One more of each length: what a process with a clock ahead has written.
    assert UsageSpan.objects.count() == 61 + 97 + 2 + 2
    assert spans_sweep(NOW) == 0


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases refuse such values")
def test_damaged_spans_are_left_out_and_end_nothing() -> None:
    rows = [UsageSpan.objects.create(begin=at(12, minute), length_s=MINUTE) for minute in (26, 27, 28, 29)]
    damages = ("begin = '2026-13-45 00:00:00'", "requests = 'many'", "cache_outcomes = '[1'")
    with connection.cursor() as cursor:
        for row, damage in zip(rows, damages, strict=False):
            cursor.execute(f"update inference_usagespan set {damage} where id = {row.pk}")
    assert spans_read(UsageSpan.objects.all()) == [rows[3]]
    assert at(12, 26) in missing_begins(NOW, MINUTE)
    assert spans_sweep(NOW) == 1
