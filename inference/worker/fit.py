"""Say whether a model would fit: the memory of a planned load, what it would unload, and which sizes would fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inference.errors import BlazrError, OutOfCacheBlocks
from inference.worker.eviction import models_to_evict
from inference.worker.interfaces import LoadPlan, LoadSizes, PlanLoad
from inference.worker.resident import Resident


def plan_for_fit(plan_load: PlanLoad, checkpoint_id: str, requested: LoadSizes | None) -> tuple[LoadPlan, int]:
    """Return the plan of a load, and the bytes by which the memory for states is too small.

    If it is, the plan is that of one sequence, with as much memory for states as it takes.

    Args:
        requested: Sizes in place of the model's settings; None: these.

    Raises:
        BlazrError: The model can't be loaded.
    """
    if requested is None:
        return plan_load(checkpoint_id), 0
    try:
        return plan_load(checkpoint_id, requested), 0
    except OutOfCacheBlocks as error:
        if not error.needed_bytes:
            raise
        one = requested._replace(max_num_seqs=1, cache_bytes=error.needed_bytes)
        return plan_load(checkpoint_id, one), error.needed_bytes - error.budget_bytes


def fit_report(
    plan: LoadPlan, others: Sequence[Resident], own: Resident | None, *, budget_bytes: int
) -> dict[str, Any]:
    """Return whether a model would fit beside ``others``, and the memory that it would take, as plain values.

    Args:
        own: The model itself, if it is here.
    """
    needed = plan.needed_bytes
    pinned = sum(item.memory_bytes for item in others if item.pinned)
    evicted = models_to_evict(needed, others, budget_bytes=budget_bytes)
    used = sum(item.memory_bytes for item in others)
    is_here = own is not None and not own.has_failed
    if is_here:
        verdict = "resident"
    elif needed > budget_bytes:
        verdict = "too_large"
    elif needed + pinned > budget_bytes:
        verdict = "pinned_models_in_the_way"
    else:
        verdict = "fits" if needed + used <= budget_bytes else "fits_after_eviction"
    sizes = plan.sizes
    planned = sizes.get("weights_bytes", 0) + sizes.get("states_bytes", 0) + plan.adapter_bytes
    return {
        "verdict": verdict,
        "needed_bytes": needed,
        "budget_bytes": budget_bytes,
        "used_bytes": used,
        "pinned_bytes": pinned,
        "resident_bytes": own.memory_bytes if own is not None and is_here else 0,
        "missing_bytes": max(0, needed + pinned - budget_bytes),
        "evicts": [{"name": item.name, "memory_bytes": item.memory_bytes} for item in evicted or ()],
        "adapter_bytes": plan.adapter_bytes,
        "draft_bytes": max(0, needed - planned),
        "max_num_seqs": plan.max_num_seqs,
        **sizes,
    }


def with_suggestion(
    report: dict[str, Any], plan: LoadPlan, requested: LoadSizes | None, states_missing_bytes: int
) -> dict[str, Any]:
    """Return a report with what is missing for ``requested``, and the most sequences or tokens that fit in its place.

    Args:
        states_missing_bytes: As ``plan_for_fit`` returns it.
    """
    if requested is None:
        return report
    found = {**report, "requested_model_len": requested.max_model_len, "requested_num_seqs": requested.max_num_seqs}
    if states_missing_bytes:
        if found["verdict"] != "resident":
            found["verdict"] = "too_large"
        found["missing_bytes"] += states_missing_bytes
        found["full_sequences"] = 0
    available = report["budget_bytes"] - report["pinned_bytes"]
    is_short = found["full_sequences"] < requested.max_num_seqs
    if not found["missing_bytes"] and not is_short:
        return found
    if not found["missing_bytes"]:
        found["short_bytes"] = max(0, found["full_states_bytes"] - found["states_bytes"])

    def fits(max_model_len: int, max_num_seqs: int) -> bool:
        try:
            tried = plan.resized(LoadSizes(max_model_len, max_num_seqs))
        except BlazrError:
            return False
        return tried.needed_bytes <= available and tried.sizes["full_sequences"] >= max_num_seqs

    found["fitting_num_seqs"] = _largest(requested.max_num_seqs, lambda number: fits(requested.max_model_len, number))
    found["fitting_model_len"] = _largest(requested.max_model_len, lambda number: fits(number, requested.max_num_seqs))
    return found


def _largest(high: int, fits: Callable[[int], bool]) -> int | None:
    """Return the largest number from 1 to ``high`` that fits, by bisection; None: not even 1 does."""
    if not fits(1):
        return None
    low = 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
