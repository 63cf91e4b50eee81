"""Usage records, written in bulk: one writer per web process, no query on the path of a request.

A record is offered when its request ends; a thread stores what has gathered each second. Past ``MAX_PENDING`` (the
database is gone for long) the newest records are dropped, counted and logged: requests go on.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from inference.metrics import USAGE_DROPPED

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 1.0
MAX_PENDING = 100_000
INSERT_BATCH = 500


@dataclass(frozen=True, slots=True)
class Usage:
    """What one request used; the members are those of ``inference.models.UsageRecord``."""

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


class UsageWriter:
    """Gathers records and stores them from a thread of its own, which starts with the first record."""

    def __init__(self) -> None:
        self._pending: deque[Usage] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def offer(self, usage: Usage) -> None:
        """Take a record; returns at once."""
        with self._lock:
            if len(self._pending) >= MAX_PENDING:
                USAGE_DROPPED.inc()
                return
            self._pending.append(usage)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
                self._thread.start()

    def flush(self) -> int:
        """Store what has gathered; records that can't be stored now are kept.

        Returns:
            How many were stored.
        """
        from inference.models import UsageRecord

        stored = 0
        while True:
            with self._lock:
                taken = [self._pending.popleft() for _ in range(min(len(self._pending), INSERT_BATCH))]
            if not taken:
                return stored
            rows = [
                UsageRecord(
                    request_id=item.request_id,
                    tenant=item.tenant,
                    endpoint=item.endpoint,
                    model=item.model,
                    outcome=item.outcome,
                    prompt_tokens=item.prompt_tokens,
                    completion_tokens=item.completion_tokens,
                    cached_tokens=item.cached_tokens,
                    ttft_s=item.ttft_s,
                    duration_s=item.duration_s,
                    created_at=item.created_at,
                )
                for item in taken
            ]
            try:
                # A record may come twice (a retry after a lost answer of the database): one charge each.
                UsageRecord.objects.bulk_create(rows, ignore_conflicts=True)
            except BaseException:
                with self._lock:
                    self._pending.extendleft(reversed(taken))
                raise
            stored += len(rows)

    def close(self) -> None:
        """Store the rest and end the thread."""
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
            try:
                self.flush()
            except Exception:
                logger.warning("usage records could not be stored; they are kept", exc_info=not closing)
            finally:
                # The thread is idle for most of the second, and the server may have gone away meanwhile.
                connections.close_all()
            if closing:
                return


_writer: UsageWriter | None = None


def usage_writer() -> UsageWriter:
    """The writer of this process."""
    global _writer
    if _writer is None:
        _writer = UsageWriter()
        atexit.register(_writer.close)
    return _writer


def usage_now() -> datetime:
    """The time of a record."""
    return datetime.now(UTC)
