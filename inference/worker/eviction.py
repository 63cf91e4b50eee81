"""Who makes room for a model: pure decisions about bytes and times, without locks or loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inference.worker.interfaces import LoadPlan
from inference.worker.resident_models import Resident


@dataclass(frozen=True, slots=True)
class Room:
    """What has to happen before a model fits.

    Attributes:
        step: ``fits``: nothing. ``evict``: ``victim`` has to go. ``wait``: for those that leave, or until ``look_at``.
            ``never``: what is in the way stays.
        victim: The model to unload.
        look_at: Monotonic time at which another model may go; None: none will.
    """

    step: Literal["fits", "evict", "wait", "never"]
    victim: Resident | None = None
    look_at: float | None = None


def room_for(
    needed_bytes: int, others: Sequence[Resident], *, budget_bytes: int, min_residence_s: float, now: float
) -> Room:
    """The next step towards room for ``needed_bytes`` beside ``others``.

    The least recently used model goes first, idle ones before busy ones; one that was just loaded stays for a while.
    """
    used = sum(item.memory_bytes for item in others)
    if used + needed_bytes <= budget_bytes:
        return Room("fits")
    leaving = sum(item.memory_bytes for item in others if item.status == "unloading")
    if used - leaving + needed_bytes <= budget_bytes:
        return Room("wait")
    victims = sorted(
        (item for item in others if item.status == "ready" and not item.pinned),
        key=lambda item: (item.active > 0, item.last_used),
    )
    if not victims:
        return Room("wait" if leaving else "never")
    stays = [(item, item.stays_until(min_residence_s)) for item in victims]
    free = next((item for item, until in stays if until <= now), None)
    if free is not None:
        return Room("evict", victim=free)
    return Room("wait", look_at=min(until for _, until in stays))


def fit_report(plan: LoadPlan, others: Sequence[Resident], *, is_here: bool, budget_bytes: int) -> dict[str, Any]:
    """Whether a model would fit beside ``others``, and what it would take; plain values."""
    needed = plan.needed_bytes
    kept = sum(item.memory_bytes for item in others if item.pinned)
    used = sum(item.memory_bytes for item in others)
    if is_here:
        verdict = "resident"
    elif needed > budget_bytes:
        verdict = "too_large"
    elif needed + kept > budget_bytes:
        verdict = "pinned_models_in_the_way"
    else:
        verdict = "fits" if needed + used <= budget_bytes else "fits_after_eviction"
    return {
        "verdict": verdict,
        "needed_bytes": needed,
        "budget_bytes": budget_bytes,
        "used_bytes": used,
        "pinned_bytes": kept,
        "max_num_seqs": plan.max_num_seqs,
        **plan.sizes,
    }
