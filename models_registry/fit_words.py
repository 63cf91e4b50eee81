"""Say in words whether a model fits on the workers, with the split of the memory that a load would reserve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inference.host.units import format_bytes
from models_registry.memory_bar import bar_parts

PARTS = (
    ("weights", "weights", "weights_bytes"),
    ("draft model", "draft", "draft_bytes"),
    ("paged cache", "used", "cache_bytes"),
    ("states of sequences", "states", "slots_bytes"),
    ("snapshots for later prompts", "cached", "snapshots_bytes"),
    ("adapters", "adapters", "adapter_bytes"),
)
"""The parts of a load: name, kind of the bar's part, and the report's member."""


def fit_rows(fits: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the report of each worker (``live.fit``) with its verdict and its split in words, and a bar."""
    return [
        {
            **fit,
            "mark": _mark(fit),
            "words": _verdict(fit),
            "advice": _advice(fit),
            "split": _split(fit),
            "bar": bar_parts(_bar(fit)),
        }
        for fit in fits
    ]


def _bar(fit: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return the parts of the load, what other models hold, and what is left of the budget."""
    free = fit["budget_bytes"] - fit["needed_bytes"] - fit["used_bytes"]
    parts = [
        ("pinned models", "pinned", fit["pinned_bytes"]),
        ("other models", "others", fit["used_bytes"] - fit["pinned_bytes"]),
        *((name, kind, fit.get(member, 0)) for name, kind, member in PARTS),
        ("free", "free", max(0, free)),
    ]
    return [part for part in parts if part[2]]


def _is_short(fit: Mapping[str, Any]) -> bool:
    """Whether the states of a load hold fewer sequences of full length than are requested."""
    return int(fit["full_sequences"]) < int(fit.get("requested_num_seqs", 0))


def _mark(fit: Mapping[str, Any]) -> str:
    if fit["missing_bytes"]:
        return "bad"
    return "warn" if fit["evicts"] or _spare(fit) < 0 or _is_short(fit) else "good"


def _spare(fit: Mapping[str, Any]) -> int:
    """Return the bytes that a load beside all models would leave."""
    return int(fit["budget_bytes"] - fit["used_bytes"] - fit["needed_bytes"])


def _verdict(fit: Mapping[str, Any]) -> str:
    """Return whether the load fits, what it would unload, or how much is missing."""
    if fit["missing_bytes"]:
        words = f"does not fit by {format_bytes(fit['missing_bytes'])}"
        if fit["pinned_bytes"] and fit["needed_bytes"] <= fit["budget_bytes"]:
            words += f": pinned models take {format_bytes(fit['pinned_bytes'])}"
    elif fit["evicts"]:
        gone = ", ".join(f"{item['name']} ({format_bytes(item['memory_bytes'])})" for item in fit["evicts"])
        words = f"would unload: {gone}"
    elif _spare(fit) < 0:  # nothing can be unloaded now
        words = "fits once other models have finished loading or unloading"
    else:
        words = f"fits with {format_bytes(_spare(fit))} to spare"
    if not fit["missing_bytes"] and _is_short(fit):
        words += f", but its states are {format_bytes(fit['short_bytes'])} short of {_requested(fit)}"
    if fit["verdict"] == "resident":
        return f"Loaded here with {format_bytes(fit['resident_bytes'])}; loaded anew it {words}."
    return f"{words[0].upper()}{words[1:]}."


def _requested(fit: Mapping[str, Any]) -> str:
    return f"{fit['requested_num_seqs']:,} sequences of {fit['requested_model_len']:,} tokens"


def _advice(fit: Mapping[str, Any]) -> str:
    """Return which smaller numbers fit; empty where nothing is missing."""
    if "fitting_num_seqs" not in fit:
        return ""
    found = []
    if fit["fitting_num_seqs"]:
        found.append(f"{fit['fitting_num_seqs']:,} sequences of {fit['requested_model_len']:,} tokens")
    if fit["fitting_model_len"]:
        found.append(f"{fit['fitting_model_len']:,} tokens with {fit['requested_num_seqs']:,} sequences")
    if not found:
        return "Smaller numbers don't fit either: quantise the model, unpin others or raise BLAZR_MEMORY_BUDGET."
    return f"Try at most {', or '.join(found)}."


def _split(fit: Mapping[str, Any]) -> str:
    """Return what a load reserves, and for how many sequences."""
    parts = (
        (fit["weights_bytes"], "weights"),
        (fit["states_bytes"], "reserved states"),
        (fit["draft_bytes"], "draft model"),
        (fit["adapter_bytes"], "adapters"),
    )
    split = f"A load takes {' + '.join(f'{format_bytes(size)} {name}' for size, name in parts if size)}: room "
    if fit["bytes_per_token"]:
        split += f"for {fit['full_sequences']:,} sequences of {fit['max_model_len']:,} tokens, or more shorter ones"
    else:
        split += f"for {fit['full_sequences']:,} sequences of any length"
    split += f"; up to {fit['max_num_seqs']:,} are computed at once."
    per = [
        f"{format_bytes(size)} per {what}"
        for size, what in ((fit["bytes_per_token"], "token"), (fit["bytes_per_sequence"], "sequence"))
        if size
    ]
    return f"{split} The states take {' and '.join(per)}." if per else split
