"""What the memory tab of a model's page shows: whether a load fits, by context and sequences, with its split."""

from __future__ import annotations

from typing import Any

from django.http import QueryDict

from inference.errors import BlazrError
from models_registry import live
from models_registry.fit_words import fit_rows
from models_registry.models import Checkpoint
from models_registry.page_numbers import DEFAULT_CONTEXT, number_of
from models_registry.settings_schema import MODEL_SETTINGS

DEFAULT_SEQUENCES = 16
MAX_SEQUENCES = next(int(setting.high) for setting in MODEL_SETTINGS if setting.name == "max_num_seqs")


def fit_context(checkpoint: Checkpoint, query: QueryDict) -> dict[str, Any]:
    """Return each worker's report for the sizes that an address asks for; those of the settings without them.

    Args:
        query: ``tokens`` of each sequence and ``sequences`` at once.
    """
    max_tokens = max(checkpoint.max_position_embeddings, 1)
    sizes, problem = _sizes(query, max_tokens)
    fits: list[dict[str, Any]] = []
    if checkpoint.state != "available":
        problem = f"The model is {checkpoint.state}; only an available one can be planned."
    elif not problem:
        try:
            fits = live.fit(checkpoint, sizes)["workers"]
        except BlazrError as error:
            problem = error.message
    tokens, sequences = sizes or _of_load(fits) or (min(DEFAULT_CONTEXT, max_tokens), DEFAULT_SEQUENCES)
    return {
        "tokens": tokens,
        "sequences": sequences,
        "max_tokens": max_tokens,
        "max_sequences": MAX_SEQUENCES,
        "token_stops": _stops(max_tokens),
        "sequence_stops": _stops(MAX_SEQUENCES),
        "fits": fit_rows(fits),
        "fit_problem": problem,
    }


def _sizes(query: QueryDict, max_tokens: int) -> tuple[tuple[int, int] | None, str]:
    """Return the tokens and sequences of an address, None without both, and what is wrong with them."""
    found = []
    for name, label, high in (
        ("tokens", "Tokens of each sequence", max_tokens),
        ("sequences", "Sequences at once", MAX_SEQUENCES),
    ):
        text = query.get(name)
        if text is None:
            return None, ""
        number = number_of(text.strip(), 0, 1, high)
        if not number:
            return None, f"{label}: {text[:20]!r} isn't a whole number from 1 to {high:,}."
        found.append(number)
    return (found[0], found[1]), ""


def _of_load(fits: list[dict[str, Any]]) -> tuple[int, int] | None:
    """Return the sizes that a load with the model's settings has on the first worker."""
    return (fits[0]["max_model_len"], fits[0]["max_num_seqs"]) if fits else None


def _stops(high: int) -> list[int]:
    """Return the numbers of a slider: powers of two with one number between each pair, and the largest."""
    found, stop = [], 1
    while stop < high:
        found.append(stop)
        if stop > 1 and stop * 3 // 2 < high:
            found.append(stop * 3 // 2)
        stop *= 2
    return [*found, high]
