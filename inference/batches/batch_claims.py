"""Claim whole batches for validation and ending, with a lease and a fence, as for lines.

When a process dies, another one claims the batch. The fence refuses the writes of a process that was only suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from inference.jobs.claims import leases_shorten, seconds_from_now
from inference.jobs.row_order import update_in_order
from inference.models import Batch

LEASE_S = 30.0


class FenceLost(Exception):
    """Another worker holds the batch, or the batch was cancelled."""


class BatchClaim:
    """A batch that this process has claimed.

    Args:
        stopping: Returns True when the process ends; other workers continue then.
    """

    def __init__(self, row: Batch, stopping: Callable[[], bool]) -> None:
        self.row = row
        self._stopping = stopping
        self._renewed_at = time.monotonic()

    def write(self, **values: Any) -> None:
        """Update the batch.

        Raises:
            FenceLost: The claim was lost.
        """
        held = Batch.objects.filter(pk=self.row.pk, fence=self.row.fence, state=self.row.state)
        if not held.update(**values):
            raise FenceLost
        self._renewed_at = time.monotonic()

    def keep(self, **values: Any) -> None:
        self.write(lease_until=seconds_from_now(LEASE_S), **values)

    def pause(self) -> None:
        """Pause between two pieces of work: yield to the engine's thread, check for a stop, renew the lease.

        Raises:
            FenceLost: The claim was lost, or the process stops.
        """
        if self._stopping():
            # The next worker can continue at once.
            self.give_back()
            raise FenceLost
        if time.monotonic() - self._renewed_at > LEASE_S / 4:
            self.keep()
        time.sleep(0.001)

    def give_back(self, **values: Any) -> None:
        """Release the claim, so that any worker can claim the batch.

        Raises:
            FenceLost: The claim was lost.
        """
        self.write(owner="", lease_until=None, **values)


def batches_abandon(*, owner: str) -> int:
    """Expire the leases of ``owner``; called when a process of that name starts, as its predecessor is dead."""
    held = Batch.objects.filter(owner=owner, lease_until__isnull=False)
    return update_in_order(held, lease_until=seconds_from_now(-1))


def batch_claim(rows: QuerySet[Batch], *, owner: str, stopping: Callable[[], bool], **values: Any) -> BatchClaim | None:
    """Claim the first of ``rows`` that no worker holds.

    Args:
        owner: The worker's id.
        stopping: See ``BatchClaim``.
    """
    leases_shorten(rows, LEASE_S)
    free = rows.filter(Q(lease_until=None) | Q(lease_until__lt=Now())).order_by("priority", "id")
    with transaction.atomic():
        if connection.features.has_select_for_update_skip_locked:
            free = free.select_for_update(skip_locked=True)
        row = free.first()
        if row is None:
            return None
        Batch.objects.filter(pk=row.pk).update(
            fence=F("fence") + 1, owner=owner, lease_until=seconds_from_now(LEASE_S), **values
        )
        row.refresh_from_db()
    return BatchClaim(row, stopping)
