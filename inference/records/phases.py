"""Divide the time of a request into phases, from what its worker and the web process have measured."""

from __future__ import annotations

import json
from collections.abc import Sequence

from inference.values.output_builder import PromptState

PHASES = ("queue", "swap", "load", "turn", "prepare", "slot", "prefill", "decode", "delivery")
"""In the order of time.

``queue``: until a worker had taken the request, with the ways there and back. ``swap``: until another model was
unloaded. ``load``: until its model was loaded. ``turn``: for its caller's turn and a place in the engine. ``prepare``:
template and tokens. ``slot``: for a place in the steps. ``prefill``, ``decode``: until the first token, and the last.
``delivery``: until the client had the end.
"""
_SHORTEST_S = 1e-6


def phases_of(prompts: Sequence[PromptState], *, duration_s: float, delivery_s: float) -> dict[str, float]:
    """Return the seconds of each phase that was measured; empty for several prompts, whose phases overlap.

    Args:
        duration_s: Seconds of the whole request, as the web process saw it.
        delivery_s: Seconds from the last event until the client had it.
    """
    usage = prompts[0].usage if len(prompts) == 1 else None
    if usage is None or "waits" not in usage:
        return {}
    waits = usage["waits"]
    before = {name: waits.get(name, 0.0) for name in ("swap", "load", "turn", "prepare")}
    in_worker = before["swap"] + before["load"] + before["turn"] + usage["duration_s"]
    slot_s = usage.get("slot_s", 0.0)
    found = {
        "queue": duration_s - delivery_s - in_worker,
        **before,
        "slot": usage["queue_s"] - before["prepare"] + slot_s,
        "prefill": usage["ttft_s"] - usage["queue_s"] - slot_s,
        "decode": usage["duration_s"] - usage["ttft_s"],
        "delivery": delivery_s,
    }
    return {name: round(found[name], 6) for name in PHASES if found[name] >= _SHORTEST_S}


def phases_text(prompts: Sequence[PromptState], *, duration_s: float, delivery_s: float) -> str:
    """Return ``phases_of`` as a row stores it, with the model that was evicted; empty if nothing was measured."""
    found = phases_of(prompts, duration_s=duration_s, delivery_s=delivery_s)
    if not found:
        return ""
    usage = prompts[0].usage
    evicted = usage.get("evicted", "") if usage is not None else ""
    return json.dumps({"seconds": found, **({"evicted": evicted} if evicted else {})})
