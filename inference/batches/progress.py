"""Compute the progress of batches: share done, queue position, rates, estimated finish.

Rates are counted from the results of the last minute. The estimate for a batch with running lines uses the batch's own
rate. The estimate for a waiting batch uses the rate of all batches, and includes the lines before the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Sum
from django.utils import timezone

from inference.batches.services import open_batches
from inference.models import Batch, BatchResult

RATE_WINDOW_S = 60.0


def batches_progress(rows: Iterable[Batch]) -> dict[int, dict[str, Any]]:
    """Return ``progress`` of each batch by primary key, with a fixed number of queries."""
    batches = list(rows)
    ended = [_of_ended(row) for row in batches if row.is_finished]
    found_by_key = {row.pk: item for row, item in zip((row for row in batches if row.is_finished), ended, strict=True)}
    if len(found_by_key) == len(batches):
        return found_by_key
    now = timezone.now()
    columns = ("pk", "num_total", "num_completed", "num_failed", "in_progress_at", "ending", "paused_at", "state")
    queue = [row for row in open_batches().only(*columns) if not row.is_paused]
    recent = {
        key: (lines, tokens or 0)
        for key, lines, tokens in BatchResult.objects.filter(
            batch__in=[row.pk for row in queue], finished_at__gt=now - timedelta(seconds=RATE_WINDOW_S)
        )
        .order_by()
        .values("batch_id")
        .annotate(lines=Count("pk"), tokens=Sum("completion_tokens"))
        .values_list("batch_id", "lines", "tokens")
    }
    started = [row.in_progress_at for row in queue if row.in_progress_at is not None and row.pk in recent]
    total_s = _span(min(started), now) if started else RATE_WINDOW_S
    total_rate = sum(lines for lines, _ in recent.values()) / total_s
    places = {row.pk: number for number, row in enumerate(queue)}
    for row in batches:
        if row.pk in found_by_key:
            continue
        place = None if row.is_paused else places.get(row.pk, 0)
        lines, tokens = recent.get(row.pk, (0, 0))
        span_s = _span(row.in_progress_at, now) if row.in_progress_at is not None else RATE_WINDOW_S
        rate = lines / span_s
        before = sum(item.num_open for item in queue[:place]) if place is not None else 0
        seconds: float | None = None
        # Nobody knows when a paused batch goes on, or how many lines an unchecked one has.
        is_estimable = row.num_total and not row.is_paused
        if is_estimable and rate > 0:
            seconds = row.num_open / rate
        elif is_estimable and total_rate > 0:
            seconds = (before + row.num_open) / total_rate
        finish = None if seconds is None else now + timedelta(seconds=min(seconds, 10.0 * 365 * 86_400))
        found_by_key[row.pk] = {
            "percent": _percent(row),
            "queue_position": place,
            "lines_per_s": round(rate, 3),
            "tokens_per_s": round(tokens / span_s, 3),
            "estimated_finish_at": None if finish is None else int(finish.timestamp()),
            "is_feasible": None if finish is None else finish <= row.expires_at,
            "is_paused": row.is_paused,
        }
    return found_by_key


def batch_progress(row: Batch) -> dict[str, Any]:
    """Return ``progress`` of one batch."""
    return batches_progress([row])[row.pk]


def _of_ended(row: Batch) -> dict[str, Any]:
    """Return the progress of an ended batch, with rates over the whole run."""
    span_s = (row.ended_at - row.in_progress_at).total_seconds() if row.ended_at and row.in_progress_at else 0.0
    span_s = max(span_s, 1e-3)
    return {
        "percent": _percent(row),
        "queue_position": None,
        "lines_per_s": round((row.num_completed + row.num_failed) / span_s, 3),
        "tokens_per_s": round(row.completion_tokens / span_s, 3),
        "estimated_finish_at": None,
        "is_feasible": None,
        "is_paused": False,
    }


def _percent(row: Batch) -> float:
    return round(100.0 * (row.num_total - row.num_open) / row.num_total, 2) if row.num_total else 0.0


def _span(start: datetime, now: datetime) -> float:
    return min(RATE_WINDOW_S, max(1.0, (now - start).total_seconds()))
