"""Say which spans of time are kept of the usage records' last day, find those that are missing, and remove old ones.

An hour is kept in minutes and a day in quarters of an hour, which are the points of curves. The last hour and the last
day are spans of their own, because percentiles of parts can't be put together. A span is computed once, seconds after
its end (``inference.records.span_rows``); a record that is stored still later counts in the longer spans only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from inference.errors import GenerationCancelled
from inference.models import UsageSpan
from inference.models.readable_rows import readable_rows

MINUTE, QUARTER, HOUR, DAY = 60, 900, 3600, 86400
PARTS: Mapping[int, int] = {HOUR: MINUTE, DAY: QUARTER}
"""Lengths that pages show, with the length of the points of their curves."""
PERIODS: Mapping[int, int] = {MINUTE: MINUTE, QUARTER: QUARTER, HOUR: MINUTE, DAY: QUARTER}
"""Every so many seconds a span of a length ends."""
NUM_KEPT: Mapping[int, int] = {MINUTE: HOUR // MINUTE, QUARTER: DAY // QUARTER, HOUR: 1, DAY: 1}
"""The newest spans of each length are kept."""
LATE_S = 5
"""Seconds after the end of a span until its last records are stored."""
ALL_MODELS = ""
"""The model of spans that stand for all models."""
UNFAILED = ("completed", "cancelled", GenerationCancelled.code)

_NUMBERS: Sequence[tuple[str, Any]] = (
    *((name, int) for name in ("requests", "failures", "prompt_tokens", "cached_tokens", "completion_tokens")),
    *((f"{name}_{rank}_s", float | None) for name in ("ttft", "itl") for rank in ("p50", "p95")),
    *((name, float | None) for name in ("tokens_per_s", "waiting")),
)


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers reported of one model in one span, as means.

    Attributes:
        tokens_per_s: Generated tokens per second, those of jobs and batches included.
        waiting: Requests that waited for room, or for the model's load.
    """

    tokens_per_s: float
    waiting: float


def last_begin(now: datetime, length_s: int) -> datetime:
    """Return the begin of the newest span of a length whose records are stored."""
    period = PERIODS[length_s]
    return datetime.fromtimestamp((now.timestamp() - LATE_S) // period * period - length_s, UTC)


def kept_begins(now: datetime, length_s: int) -> list[datetime]:
    """Return the begins of the spans of a length that are kept, the oldest first."""
    newest, step = last_begin(now, length_s), timedelta(seconds=PERIODS[length_s])
    return [newest - step * back for back in reversed(range(NUM_KEPT[length_s]))]


def missing_begins(now: datetime, length_s: int) -> list[datetime]:
    """Return those of ``kept_begins`` that no row has; a span in which nothing happened has none, either."""
    begins = kept_begins(now, length_s)
    # By name: a row whose moment is damaged must not end the writer.
    known = set(UsageSpan.objects.filter(length_s=length_s, begin__in=begins).values_list("begin", flat=True))
    return [begin for begin in begins if begin not in known]


def spans_read(rows: QuerySet[UsageSpan]) -> list[UsageSpan]:
    """Return the rows without the damaged ones: SQLite stores texts in columns of numbers, too."""
    return [row for row in readable_rows(rows) if all(isinstance(getattr(row, name), kind) for name, kind in _NUMBERS)]


def spans_sweep(now: datetime) -> int:
    """Delete the spans that are not kept any more, and those that a wrong clock left in the future.

    Returns:
        The number of deleted rows.
    """
    removed = 0
    for length_s, period in PERIODS.items():
        begins = kept_begins(now, length_s)
        # One period more: another process may be ahead.
        kept = {"begin__gte": begins[0], "begin__lte": begins[-1] + timedelta(seconds=period)}
        removed += UsageSpan.objects.filter(length_s=length_s).exclude(**kept).delete()[0]
    return removed
