"""Claim the next batch lines for a worker.

``policy`` divides the free places between the batches. ``LineClaimer`` queries the rows that ``policy`` needs, and
records the worker's own figures: the rate of ended lines, and the time of the last model load for a batch. Lines that
ran when a worker died ("suspects") are claimed after the other lines of their batch, when no other line runs here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from django.db.models import Count
from django.utils import timezone

from inference.access.start_limits import StartLimits
from inference.batches import policy
from inference.batches.lines import SUSPECTS_TOGETHER, ClaimedLine, has_suspects, lines_claim
from inference.batches.services import OPEN_BATCHES, open_batches
from inference.jobs.claims import MAX_ATTEMPTS
from inference.models import Batch, BatchLine, BatchState, LineState
from inference.values.states import ResidentModel

RATE_WINDOW_S = 30.0


class Manager(Protocol):
    """The part of ``inference.worker.model_manager.ModelManager`` that the claimer uses."""

    def describe(self) -> tuple[ResidentModel, ...]: ...

    def load_cost_s(self) -> float:
        """Return the seconds of the longest load so far; 0: no load yet."""
        ...


class LineClaimer:
    """Claims lines for one worker; used by one thread only.

    Args:
        manager: The worker's models.
        owner: The worker's id.
        limits: Admits lines within the limits of their API keys.
    """

    def __init__(self, manager: Manager, *, owner: str, limits: StartLimits) -> None:
        self._manager = manager
        self._owner = owner
        self._limits = limits
        self._suspects: Batch | None = None
        self._swapped_at = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque()

    def ended(self, count: int) -> None:
        """Record that ``count`` lines have just ended here."""
        self._recent.append((time.monotonic(), count))

    def claim(self, num_free: int, *, is_empty: bool) -> list[ClaimedLine]:
        """Up to ``num_free`` lines; they are this worker's.

        Args:
            is_empty: Whether all earlier claims have ended here, so that suspects may run.
        """
        if self._suspects is not None:
            if not is_empty:
                return []
            if lines := self._suspects_of(self._suspects):
                return lines
            self._suspects = None
        lines, with_suspects = self._by_share(num_free, is_empty=is_empty) if num_free > 0 else ([], [])
        if with_suspects:
            # The window is emptied first; then only a few suspects run.
            self._suspects = with_suspects[0]
            if is_empty and not lines:
                lines = self._suspects_of(self._suspects)
        return lines

    def _by_share(self, num_free: int, *, is_empty: bool) -> tuple[list[ClaimedLine], list[Batch]]:
        """Return the claimed lines by share, and the batches that have only suspects left."""
        if not OPEN_BATCHES.exists():
            return [], []
        batches = {
            row.pk: row for row in open_batches().filter(state=BatchState.IN_PROGRESS, ending="", paused_at=None)
        }
        capacities = {tenant: self._limits.capacity(tenant) for tenant in {row.tenant for row in batches.values()}}
        candidates = [self._candidate(row) for row in batches.values() if row.num_open and capacities[row.tenant] != 0]
        lines: list[ClaimedLine] = []
        with_suspects: list[Batch] = []
        if not candidates:
            return lines, with_suspects
        resident = self._resident()
        stayed_s, load_s = time.monotonic() - self._swapped_at, self._manager.load_cost_s() or policy.DEFAULT_LOAD_S
        swap_allowed = policy.can_swap(resident, stayed_s=stayed_s, load_s=load_s)
        running = _running_by_tenant(candidates)
        while len(lines) < num_free and candidates:
            found = policy.shares(
                candidates,
                num_free=num_free - len(lines),
                running=running,
                resident=resident,
                swap_allowed=swap_allowed,
            )
            spent: set[int] = set()
            for share in found:
                batch = batches[share.key]
                capacity = capacities[batch.tenant]
                count = share.count if capacity is None else min(share.count, capacity)
                taken = lines_claim(batch=batch, owner=self._owner, limit=count, checkpoint_ids=share.checkpoint_ids)
                lines += taken
                running[batch.tenant] = running.get(batch.tenant, 0) + len(taken)
                if capacity is not None:
                    capacities[batch.tenant] = capacity - len(taken)
                if len(taken) < share.count:
                    spent.add(share.key)
                    if len(taken) < count and has_suspects(batch):
                        with_suspects.append(batch)
            if not spent:
                break
            candidates = [candidate for candidate in candidates if candidate.key not in spent]
        self._record_swaps(lines, resident)
        if is_empty and not lines and not with_suspects and not swap_allowed:
            # The resident models have no work left, so a swap is free.
            self._swapped_at = float("-inf")
        return lines, with_suspects

    def _suspects_of(self, batch: Batch) -> list[ClaimedLine]:
        capacity = self._limits.capacity(batch.tenant)
        limit = SUSPECTS_TOGETHER if capacity is None else min(SUSPECTS_TOGETHER, capacity)
        if limit == 0:
            return []
        lines = lines_claim(batch=batch, owner=self._owner, limit=limit, min_attempts=1, max_attempts=1) or lines_claim(
            batch=batch, owner=self._owner, limit=1, min_attempts=2, max_attempts=MAX_ATTEMPTS
        )
        self._record_swaps(lines, self._resident())
        return lines

    def _resident(self) -> frozenset[str]:
        return frozenset(model.checkpoint_id for model in self._manager.describe() if model.stage != "unloading")

    def _record_swaps(self, lines: Sequence[ClaimedLine], resident: Collection[str]) -> None:
        if any(line.checkpoint_id not in resident for line in lines):
            self._swapped_at = time.monotonic()

    def _candidate(self, row: Batch) -> policy.Candidate:
        rate = self._lines_per_s()
        return policy.Candidate(
            key=row.pk,
            tenant=row.tenant,
            priority=row.priority,
            checkpoint_ids=frozenset(row.checkpoint_names),
            seconds_left=(row.expires_at - timezone.now()).total_seconds(),
            seconds_needed=row.num_open / rate if rate else 0.0,
        )

    def _lines_per_s(self) -> float:
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()
        return sum(count for _, count in self._recent) / RATE_WINDOW_S


def _running_by_tenant(candidates: Sequence[policy.Candidate]) -> dict[str, int]:
    """Return the running lines by tenant over all workers; empty if there is only one tenant."""
    if len({candidate.tenant for candidate in candidates}) == 1:
        return {}
    rows = BatchLine.objects.filter(state=LineState.RUNNING).order_by().values_list("batch__tenant")
    return dict(rows.annotate(number=Count("pk")).values_list("batch__tenant", "number"))
