"""The time of one request as a waterfall, and why it was slow, in words."""

from __future__ import annotations

from typing import Any

from inference.models import UsageRecord
from inference.models.readable_rows import json_value
from inference.records.phases import PHASES

WIDTH = 1000
SLOW_S = 1.0
SLOW_SHARE = 0.4
"""A request is slow because of a phase that takes such a share of at least so many seconds."""
_WORDS: dict[str, tuple[str, str, str]] = {
    "queue": ("waited in the queue", "until a worker had taken it", "mla"),
    "swap": ("waited for memory", "until another model was unloaded", "moe"),
    "load": ("waited for its model", "until it was loaded", "short_conv"),
    "turn": ("waited for its turn", "behind other requests of the model", "mla"),
    "prepare": ("prepared", "chat template and tokens", "lightning"),
    "slot": ("waited for a slot", "until the engine began with it", "mla"),
    "prefill": ("read the prompt", "until the first token", "attention"),
    "decode": ("wrote", "from the first token to the last", "mlp"),
    "delivery": ("delivered", "until the client had read all of it", "gated_delta"),
}
"""Name, explanation and colour of each phase."""


def waterfall(row: UsageRecord) -> list[dict[str, Any]]:
    """Return the phases of a request that were measured, each with its place in a bar of ``WIDTH``."""
    seconds = phase_seconds(row)
    total, begin, found = max(sum(seconds.values()), 1e-9), 0.0, []
    for name in (name for name in PHASES if name in seconds):
        title, what, kind = _WORDS[name]
        if name == "swap" and (evicted := _stored(row).get("evicted")):
            what = f"until {evicted} was unloaded"
        found.append(
            {
                "name": title,
                "what": what,
                "seconds": seconds[name],
                "x": round(WIDTH * begin / total),
                "width": max(2, round(WIDTH * seconds[name] / total)),
                "kind": kind,
            }
        )
        begin += seconds[name]
    return found


def phase_seconds(row: UsageRecord) -> dict[str, float]:
    """Return the seconds of each phase; of a row without measurements those that its times give."""
    stored = _stored(row).get("seconds")
    if isinstance(stored, dict) and stored:
        return {name: float(stored[name]) for name in PHASES if isinstance(stored.get(name), int | float)}
    waited = min(row.queue_s, row.duration_s)
    first = row.duration_s if row.ttft_s is None else min(max(row.ttft_s, waited), row.duration_s)
    return {"queue": waited, "prefill": first - waited, "decode": row.duration_s - first}


def slow_words(row: UsageRecord) -> str:
    """Return what took most of a slow request's time, and what would shorten it; empty if it wasn't slow."""
    seconds = phase_seconds(row)
    total = sum(seconds.values())
    if total < SLOW_S:
        return ""
    groups = {
        "queue": sum(seconds.get(name, 0.0) for name in ("queue", "turn", "slot")),
        **{name: seconds.get(name, 0.0) for name in ("swap", "load", "prefill", "decode", "delivery")},
    }
    name, longest = max(groups.items(), key=lambda item: item[1])
    if longest < SLOW_SHARE * total:
        return ""
    return f"{_reason(name, row)} That took {longest:.1f} of {total:.1f} s."


def _reason(name: str, row: UsageRecord) -> str:
    if name == "swap":
        evicted = _stored(row).get("evicted") or "another model"
        return (
            f"{evicted} had to be unloaded first: both don't fit into the memory. A larger BLAZR_MEMORY_BUDGET, or "
            "another worker, keeps both."
        )
    if name == "load":
        return "Its model wasn't loaded. A longer keep_alive, or a pin, keeps a model loaded."
    if name == "queue":
        return "Other requests had all places. A higher max_num_seqs of the model, or another worker, gives more."
    if name == "prefill":
        computed = row.prompt_tokens - row.cached_tokens
        return f"{computed:,} tokens of its prompt had to be read, {row.cached_tokens:,} were in the prefix cache."
    if name == "decode":
        return f"It wrote {row.completion_tokens:,} tokens, one after the other."
    return "Its client read slowly."


def _stored(row: UsageRecord) -> dict[str, Any]:
    found: dict[str, Any] = json_value(row, "phases")
    return found
