"""Divide a worker's free places between batches; pure functions without a database.

The order is: priority; a near deadline; resident models, so that swaps are few; a fair share for each tenant; the
earlier batch. A model that isn't resident gets places when no other batch of that rank waits, or when the resident
models have run for ``STAY_FACTOR`` times the cost of a load, which bounds the share of time that swaps take.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

STAY_FACTOR = 10.0
MIN_STAY_S = 30.0
DEFAULT_LOAD_S = 30.0
"""Assumed load time in seconds while no load was measured."""
URGENT_MIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A batch with waiting lines.

    Attributes:
        key: Primary key, which gives the order of arrival.
        tenant: The owner of the batch.
        priority: Lower goes first.
        checkpoint_ids: Models of the batch's lines.
        seconds_left: Seconds until the end of the completion window.
        seconds_needed: Estimated seconds for the open lines; 0: unknown.
    """

    key: int
    tenant: str
    priority: int
    checkpoint_ids: frozenset[str]
    seconds_left: float
    seconds_needed: float = 0.0

    @property
    def is_urgent(self) -> bool:
        """Whether the batch misses its deadline unless it runs now, or has missed it."""
        return self.seconds_left < max(URGENT_MIN_S, 2.0 * self.seconds_needed)


@dataclass(frozen=True, slots=True)
class Share:
    """Places of one batch.

    Attributes:
        key: The batch.
        count: The most lines to claim.
        checkpoint_ids: Only lines of these models; None: of any model, which may cause a load.
    """

    key: int
    count: int
    checkpoint_ids: frozenset[str] | None


def can_swap(resident: Collection[str], *, stayed_s: float, load_s: float) -> bool:
    """Whether a model may be loaded although the resident models have work.

    Args:
        stayed_s: Seconds since the last load for a batch.
        load_s: Measured seconds of a load.
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
        running: Number of running lines by tenant.
        resident: Models that are resident or loading.
        swap_allowed: See ``can_swap``.
    """
    taken: dict[int, int] = {}
    limits: dict[int, frozenset[str] | None] = {}
    order: list[int] = []
    held = dict(running)
    # A worse rank gets what is left when the lines of the best one have been claimed: another call, without them.
    heads = {candidate.tenant: candidate for candidate in reversed(_best_rank(candidates, resident, swap_allowed))}
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
    return [Share(key, taken[key], limits[key]) for key in order]


def _best_rank(candidates: Sequence[Candidate], resident: frozenset[str], swap_allowed: bool) -> list[Candidate]:
    """Return the batches of the best rank that there is, the earlier batch first."""

    def rank(candidate: Candidate) -> tuple[int, bool, bool]:
        is_here = bool(candidate.checkpoint_ids & resident)
        return candidate.priority, not candidate.is_urgent, not is_here and not swap_allowed

    best = min(map(rank, candidates), default=None)
    return sorted((item for item in candidates if rank(item) == best), key=lambda item: item.key)
