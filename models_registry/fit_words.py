"""Say in words whether a model fits on the workers; the page's script says the same while numbers are changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inference.host.units import format_bytes

VERDICTS = {
    "resident": ("good", "It is loaded here."),
    "fits": ("good", "It fits beside what is loaded."),
    "fits_after_eviction": ("warn", "It fits once other models have made room."),
    "pinned_models_in_the_way": ("bad", "It doesn't fit: pinned models are in the way."),
    "too_large": ("bad", "It doesn't fit, even alone."),
}


def fit_rows(fits: Iterable[Mapping[str, Any]], tokens: int, sequences: int) -> list[dict[str, Any]]:
    """Return the answer of each worker (``live.fit``) with its verdict in words.

    Args:
        tokens, sequences: So many sequences of so many tokens are wanted.
    """
    return [{**fit, **_words(fit, tokens, sequences)} for fit in fits]


def _words(fit: Mapping[str, Any], tokens: int, sequences: int) -> dict[str, str]:
    mark, words = VERDICTS.get(fit["verdict"], ("warn", fit["verdict"]))
    states = max(0, fit["needed_bytes"] - fit["weights_bytes"])
    split = f"A load takes {format_bytes(fit['weights_bytes'])} weights + {format_bytes(states)} reserved states: room "
    if fit["bytes_per_token"]:
        split += f"for {fit['full_sequences']:,} sequences of {fit['max_model_len']:,} tokens, or more shorter ones"
    else:
        split += f"for {fit['full_sequences']:,} sequences of any length"
    split += f"; up to {fit['max_num_seqs']:,} are computed at once."
    each = fit["bytes_per_sequence"] + tokens * fit["bytes_per_token"]
    needed = fit["weights_bytes"] + sequences * each
    capacity = fit["budget_bytes"] - fit["pinned_bytes"]
    verdict = (
        f"room enough in {format_bytes(capacity)}"
        if needed <= capacity
        else f"more than {format_bytes(capacity)}, which can be had"
    )
    wish = (
        f"{format_bytes(fit['weights_bytes'])} of weights and {sequences:,} × {format_bytes(each)} of state are "
        f"{format_bytes(needed)}: {verdict}."
    )
    limits = []
    if tokens > fit["max_model_len"]:
        limits.append(f"the longest sequence is {fit['max_model_len']:,} tokens")
    if sequences > fit["max_num_seqs"]:
        limits.append(f"{fit['max_num_seqs']:,} are computed at once, the rest waits")
    if limits:
        wish += f" With its settings, {', and '.join(limits)}."
    return {"mark": mark, "words": words, "split": split, "wish": wish}
