"""The right to work on a batch as a whole: a lease and a fence, as for a line.

A process that dies is followed by another one, and one that only slept can't write any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from inference.models import Batch

LEASE_S = 30.0


class FenceLost(Exception):
    """The batch is somebody else's now, or was cancelled."""


class BatchClaim:
    """A batch that is ours to work on.

    Args:
        row: As it was claimed.
        stopping: True: the process ends; leave the rest to others.
    """

    def __init__(self, row: Batch, stopping: Callable[[], bool]) -> None:
        self.row = row
        self._stopping = stopping
        self._renewed_at = time.monotonic()

    def write(self, **values: Any) -> None:
        """Change the batch.

        Raises:
            FenceLost: It isn't ours any more.
        """
        held = Batch.objects.filter(pk=self.row.pk, fence=self.row.fence, state=self.row.state)
        if not held.update(**values):
            raise FenceLost
        self._renewed_at = time.monotonic()

    def keep(self, **values: Any) -> None:
        """``write`` with the lease renewed."""
        self.write(lease_until=Now() + timedelta(seconds=LEASE_S), **values)

    def pause(self) -> None:
        """Between two pieces of work: the engine's thread gets the interpreter, a stop is noticed, the lease kept.

        Raises:
            FenceLost: It isn't ours any more, or the process stops.
        """
        if self._stopping():
            # The next worker goes on at once.
            self.give_back()
            raise FenceLost
        if time.monotonic() - self._renewed_at > LEASE_S / 4:
            self.keep()
        time.sleep(0.001)

    def give_back(self, **values: Any) -> None:
        """Let anybody work on it.

        Raises:
            FenceLost: It isn't ours any more.
        """
        self.write(owner="", lease_until=None, **values)


def batch_claim(rows: QuerySet[Batch], *, owner: str, stopping: Callable[[], bool], **values: Any) -> BatchClaim | None:
    """Take the first of ``rows`` that nobody works on.

    Args:
        rows: Batches with work to do.
        owner: The worker's id.
        stopping: See ``BatchClaim``.
        values: Written with the claim.
    """
    free = rows.filter(Q(lease_until=None) | Q(lease_until__lt=Now())).order_by("priority", "id")
    with transaction.atomic():
        if connection.features.has_select_for_update_skip_locked:
            free = free.select_for_update(skip_locked=True)
        row = free.first()
        if row is None:
            return None
        Batch.objects.filter(pk=row.pk).update(
            fence=F("fence") + 1, owner=owner, lease_until=Now() + timedelta(seconds=LEASE_S), **values
        )
        row.refresh_from_db()
    return BatchClaim(row, stopping)
