"""Write usage records in bulk from one thread per process, so that requests run no query for them.

A request's record is queued when the request ends. Each second a thread stores the queued records and adds them to the
daily rows in the same transaction, so that a retry counts no record twice. When ``MAX_PENDING`` records wait, because
the database can't be reached, new records are dropped and counted; requests continue.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime

from inference.models import UsageDay, UsageRecord
from inference.records.metrics import USAGE_DROPPED

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 1.0
MAX_PENDING = 100_000
INSERT_BATCH = 500
_SUMMED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "engine_s", "queue_s")


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one request; the members are the fields of ``inference.models.UsageRecord``.

    ``requests`` is added to the daily rows only: the number of requests in the record (the lines of a batch); 0: it
    has no tokens and belongs into no daily row.
    """

    request_id: str
    tenant: str
    endpoint: str
    model: str
    outcome: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float | None
    duration_s: float
    created_at: datetime
    queue_s: float = 0.0
    engine_s: float = 0.0
    itl_s: float | None = None
    cache_outcome: str = ""
    prompt: str = ""
    output: str = ""
    plan: str = ""
    phases: str = ""
    requests: int = 1


_RECORDED = tuple(item.name for item in fields(Usage) if item.name != "requests")


class UsageWriter:
    """Queue records and store them from a thread of its own, which starts with the first record."""

    def __init__(self) -> None:
        self._pending: deque[Usage] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def offer(self, usage: Usage) -> None:
        """Queue a record, or drop and count it when ``MAX_PENDING`` records wait; never blocks."""
        with self._lock:
            if len(self._pending) >= MAX_PENDING:
                USAGE_DROPPED.inc()
                return
            self._pending.append(usage)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
                self._thread.start()

    def flush(self) -> int:
        """Store the queued records; keep them queued when the database raises.

        Returns:
            The number of stored records.
        """
        stored = 0
        while True:
            with self._lock:
                taken = [self._pending.popleft() for _ in range(min(len(self._pending), INSERT_BATCH))]
            if not taken:
                return stored
            try:
                stored += _store(taken)
            except BaseException:
                with self._lock:
                    self._pending.extendleft(reversed(taken))
                raise

    def close(self) -> None:
        """Store the queued records and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)

    def _run(self) -> None:
        from django.db import connections

        while True:
            closing = self._wake.wait(FLUSH_INTERVAL_S)
            keeps_connection = False
            try:
                keeps_connection = bool(self.flush()) and not closing
            except Exception:
                logger.warning("usage records could not be stored; they are kept", exc_info=not closing)
            # Keep the connection while every flush stores records, because connecting is slow.
            if not keeps_connection:
                connections.close_all()
            if closing:
                return


def _store(taken: Sequence[Usage]) -> int:
    """Store records and add them to their daily rows; skip records that an earlier attempt has stored.

    Returns:
        The number of new records.
    """
    from django.db import transaction

    with transaction.atomic():
        known = set(
            UsageRecord.objects.filter(request_id__in=[item.request_id for item in taken]).values_list(
                "request_id", flat=True
            )
        )
        fresh = list({item.request_id: item for item in taken if item.request_id not in known}.values())
        UsageRecord.objects.bulk_create(
            UsageRecord(**{name: getattr(item, name) for name in _RECORDED}) for item in fresh
        )
        _add_to_days(fresh)
    return len(fresh)


def usage_store(*, records: Sequence[Usage]) -> int:
    """Store records in this thread, within the caller's transaction if there is one.

    Returns:
        The number of new records.
    """
    return _store(records)


def _add_to_days(records: Sequence[Usage]) -> None:
    from django.db.models import F

    sums: dict[tuple[date, str, str], dict[str, float]] = {}
    for item in records:
        if not item.requests:
            continue
        day = sums.setdefault((item.created_at.date(), item.tenant, item.model), dict.fromkeys(_SUMMED, 0))
        for name in _SUMMED:
            day[name] += getattr(item, name)
    # All processes use the same order, so that two flushes don't deadlock.
    ordered = sorted(sums)
    UsageDay.objects.bulk_create(
        (UsageDay(day=day, tenant=tenant, model=model) for day, tenant, model in ordered), ignore_conflicts=True
    )
    for key in ordered:
        row = UsageDay.objects.filter(day=key[0], tenant=key[1], model=key[2])
        row.update(**{name: F(name) + value for name, value in sums[key].items()})


_writer: UsageWriter | None = None


def usage_writer() -> UsageWriter:
    global _writer
    if _writer is None:
        _writer = UsageWriter()
        atexit.register(_writer.close)
    return _writer


def usage_now() -> datetime:
    """Return the current time (UTC) for a record."""
    return datetime.now(UTC)
