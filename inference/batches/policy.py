"""Which batches the free places of a worker go to. Pure functions; knows no rows.

In this order: priority; batches whose deadline is near; models that are here, so that swaps are few; a fair share for
each tenant; the earlier batch. A model that isn't here gets its turn when nothing else of that rank waits, or when the
models that are here have run for ``STAY_FACTOR`` times what a load costs: swaps take a tenth of the time at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

STAY_FACTOR = 10.0
MIN_STAY_S = 30.0
DEFAULT_LOAD_S = 30.0
"""Assumed of a model whose load was never seen."""
URGENT_MIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A batch with waiting lines.

    Attributes:
        key: Primary key; the order of arrival.
        tenant: Whose it is.
        priority: Lower goes first.
        checkpoint_ids: Models of its lines.
        seconds_left: Until its window is over.
        seconds_needed: Estimate for its open lines; 0: unknown.
    """

    key: int
    tenant: str
    priority: int
    checkpoint_ids: frozenset[str]
    seconds_left: float
    seconds_needed: float = 0.0

    @property
    def is_urgent(self) -> bool:
        """Whether it misses its deadline unless it runs now; not: whether it has missed it already."""
        return self.seconds_left < max(URGENT_MIN_S, 2.0 * self.seconds_needed)


@dataclass(frozen=True, slots=True)
class Share:
    """Places for one batch.

    Attributes:
        key: The batch.
        count: At most so many lines.
        checkpoint_ids: Only lines of these models; None: of any, which may cause a load.
    """

    key: int
    count: int
    checkpoint_ids: frozenset[str] | None


def can_swap(resident: Collection[str], *, stayed_s: float, load_s: float) -> bool:
    """Whether a model that isn't here may be loaded although there is work for those that are.

    Args:
        resident: Models that are here.
        stayed_s: Since the last load for a batch.
        load_s: What a load costs, as learned.
    """
    return not resident or stayed_s >= max(MIN_STAY_S, STAY_FACTOR * load_s)


def shares(
    candidates: Sequence[Candidate],
    *,
    num_free: int,
    running: Mapping[str, int],
    resident: frozenset[str],
    swap_allowed: bool,
) -> list[Share]:
    """Divide ``num_free`` places; in the order in which lines should be claimed.

    Args:
        candidates: Batches with waiting lines.
        num_free: Free places.
        running: Lines that run, by tenant.
        resident: Models that are here (ready, or on their way).
        swap_allowed: See ``can_swap``.
    """
    taken: dict[int, int] = {}
    limits: dict[int, frozenset[str] | None] = {}
    order: list[int] = []
    held = dict(running)
    # One rank only: what has a worse rank waits until the better one has no more lines than places.
    for group in _ranks(candidates, resident, swap_allowed):
        heads = {candidate.tenant: candidate for candidate in reversed(group)}
        while num_free > 0 and heads:
            tenant = min(heads, key=lambda name: (held.get(name, 0), heads[name].key))
            chosen = heads[tenant]
            if chosen.key not in taken:
                order.append(chosen.key)
                here = chosen.checkpoint_ids & resident
                limits[chosen.key] = here if here and not swap_allowed else None
            taken[chosen.key] = taken.get(chosen.key, 0) + 1
            held[tenant] = held.get(tenant, 0) + 1
            num_free -= 1
        break
    return [Share(key, taken[key], limits[key]) for key in order]


def _ranks(candidates: Sequence[Candidate], resident: frozenset[str], swap_allowed: bool) -> list[list[Candidate]]:
    """Batches of equal rank, best first; within one, the earlier batch first."""

    def rank(candidate: Candidate) -> tuple[int, bool, bool]:
        is_here = bool(candidate.checkpoint_ids & resident)
        return candidate.priority, not candidate.is_urgent, not is_here and not swap_allowed

    ordered = sorted(candidates, key=lambda item: (rank(item), item.key))
    groups: list[list[Candidate]] = []
    for candidate in ordered:
        if groups and rank(groups[-1][0]) == rank(candidate):
            groups[-1].append(candidate)
        else:
            groups.append([candidate])
    return groups
