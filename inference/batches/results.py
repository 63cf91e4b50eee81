"""Lock lines, and write their results, each once, in the transaction that ends the line.

All transactions lock rows in one order, so that no two of them deadlock:

1. Lines, then batches: a transaction that has changed or locked the row of a batch waits for no line. The lines that a
   validation inserts are new, so nobody else has them.
2. Rows of one table in the order of their keys (``inference.jobs.row_order``, and ``results_write`` for batches), or
   with SKIP LOCKED, which never waits (``rows_locked``).
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection
from django.db.models import F, QuerySet
from django.utils import timezone

from inference.models import Batch, BatchLine, BatchResult, LineState

ID_BATCH = 900
_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")


def rows_locked(rows: QuerySet[BatchLine]) -> QuerySet[BatchLine]:
    """Lock rows until the transaction ends; a SQLite transaction locks the whole database at its start."""
    if connection.features.has_select_for_update_skip_locked:
        return rows.select_for_update(skip_locked=True, of=("self",))
    return rows


def result_without_response(row: BatchLine, payload: str) -> BatchResult:
    return BatchResult(line_id=row.pk, batch_id=row.batch_id, is_error=True, payload=payload)


def results_write(results: Sequence[BatchResult]) -> None:
    """End locked lines: store their results and states, and update the counts of their batches."""
    if not results:
        return
    now = timezone.now()
    for item in results:
        item.finished_at = now
    BatchResult.objects.bulk_create(results)
    for is_error, state in ((False, LineState.COMPLETED), (True, LineState.FAILED)):
        keys = [item.pk for item in results if item.is_error is is_error]
        for start in range(0, len(keys), ID_BATCH):
            BatchLine.objects.filter(pk__in=keys[start : start + ID_BATCH]).update(
                state=state, lease_until=None, owner="", not_before=None
            )
    # In the order of the keys, so that two workers that update the same batches can't deadlock.
    for batch in sorted({item.batch_id for item in results}):
        mine = [item for item in results if item.batch_id == batch]
        failed = sum(item.is_error for item in mine)
        Batch.objects.filter(pk=batch).update(
            num_completed=F("num_completed") + len(mine) - failed,
            num_failed=F("num_failed") + failed,
            **{name: F(name) + sum(getattr(item, name) for item in mine) for name in _COUNTS},
        )
