"""Choose the model to evict for another one, and say why none helps, by pure functions of bytes and times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from inference.errors import ModelLoadFailed
from inference.host.units import format_bytes
from inference.worker.interfaces import LoadPlan
from inference.worker.resident import Resident


@dataclass(frozen=True, slots=True)
class EvictionStep:
    """The next step before a model fits.

    Attributes:
        action: ``fits``: load the model. ``evict``: unload ``victim``. ``wait``: wait for unloading models, or until
            ``wait_until``. ``never``: no further model can be evicted.
        victim: The model to unload.
        wait_until: Monotonic time at which another model can be evicted; None: unknown.
    """

    action: Literal["fits", "evict", "wait", "never"]
    victim: Resident | None = None
    wait_until: float | None = None


def next_eviction_step(
    needed_bytes: int, others: Sequence[Resident], *, budget_bytes: int, min_residence_s: float, now: float
) -> EvictionStep:
    """Return the next step towards ``needed_bytes`` of free memory beside ``others``.

    The least recently used model is evicted first, idle models before busy ones. A model isn't evicted within its
    minimum time of residence.
    """
    used = sum(item.memory_bytes for item in others)
    if used + needed_bytes <= budget_bytes:
        return EvictionStep("fits")
    unloading = sum(item.memory_bytes for item in others if item.status == "unloading")
    if used - unloading + needed_bytes <= budget_bytes:
        return EvictionStep("wait")
    victims = sorted(
        (item for item in others if item.status == "ready" and not item.pinned),
        key=lambda item: (item.num_in_engine > 0, item.last_used),
    )
    if not victims:
        return EvictionStep("wait" if unloading else "never")
    stays = [(item, item.stays_until(min_residence_s)) for item in victims]
    victim = next((item for item, until in stays if until <= now), None)
    if victim is not None:
        return EvictionStep("evict", victim=victim)
    return EvictionStep("wait", wait_until=min(until for _, until in stays))


def models_to_evict(needed_bytes: int, others: Sequence[Resident], *, budget_bytes: int) -> list[Resident] | None:
    """Return the models that a load would unload now, in order; None: it would not fit even then.

    Models that are unloading count as gone, and no model is kept by its minimum time of residence.
    """
    left = [item for item in others if item.status != "unloading"]
    evicted: list[Resident] = []
    while True:
        step = next_eviction_step(needed_bytes, left, budget_bytes=budget_bytes, min_residence_s=0.0, now=0.0)
        if step.victim is None:
            return evicted if step.action == "fits" else None
        evicted.append(step.victim)
        left.remove(step.victim)


def too_large(plan: LoadPlan, budget_bytes: int) -> ModelLoadFailed:
    """Return the error of a model that doesn't fit even alone."""
    return ModelLoadFailed(
        f"{plan.name} needs {format_bytes(plan.needed_bytes)}, the memory budget of this worker is "
        f"{format_bytes(budget_bytes)}; raise BLAZR_MEMORY_BUDGET, or lower max_model_len or dtype of the model."
    )


def too_large_beside(plan: LoadPlan, others: Iterable[Resident], budget_bytes: int) -> ModelLoadFailed:
    """Return the error of a model that doesn't fit beside the models that stay."""
    return ModelLoadFailed(
        f"{plan.name} needs {format_bytes(plan.needed_bytes)}, and models that stay loaded take "
        f"{format_bytes(sum(item.memory_bytes for item in others))} of this worker's "
        f"{format_bytes(budget_bytes)}; unload one of them, or raise BLAZR_MEMORY_BUDGET."
    )
