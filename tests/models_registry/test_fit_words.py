"""Whether a model fits, in words."""

from __future__ import annotations

from typing import Any

import pytest

from models_registry.fit_words import fit_rows

MIB, GIB = 1 << 20, 1 << 30
FIT: dict[str, Any] = {
    "worker_id": "w-0", "verdict": "fits", "weights_bytes": 257 * MIB, "needed_bytes": 257 * MIB + 5 * GIB,
    "budget_bytes": 16 * GIB, "used_bytes": 0, "pinned_bytes": 0, "bytes_per_token": 1 << 10,
    "bytes_per_sequence": MIB, "full_sequences": 64, "max_model_len": 2048, "max_num_seqs": 128, "resident_bytes": 0,
    "missing_bytes": 0, "evicts": [], "adapter_bytes": 0, "draft_bytes": 0, "states_bytes": 5 * GIB,
    "cache_bytes": 4 * GIB, "slots_bytes": GIB // 2, "snapshots_bytes": GIB // 2, "full_states_bytes": 5 * GIB,
}  # fmt: skip
REQUESTED = {"requested_num_seqs": 64, "requested_model_len": 2048}


def row(**values: Any) -> dict[str, Any]:
    (found,) = fit_rows([{**FIT, **values}])
    return found


def test_weights_and_reserved_states_are_told_apart() -> None:
    found = row()
    assert found["split"].startswith("A load takes 257.0 MiB weights + 5.0 GiB reserved states: room for 64 sequences")
    assert found["split"].endswith("The states take 1.0 KiB per token and 1.0 MiB per sequence.")
    assert (found["mark"], found["words"], found["advice"]) == ("good", "Fits with 10.7 GiB to spare.", "")


def test_a_draft_model_and_adapters_are_no_states() -> None:
    found = row(needed_bytes=FIT["needed_bytes"] + 3 * MIB, draft_bytes=MIB, adapter_bytes=2 * MIB)
    assert "weights + 5.0 GiB reserved states + 1.0 MiB draft model + 2.0 MiB adapters: room" in found["split"]


def test_the_bar_has_each_part_of_the_budget_once() -> None:
    bar = row(used_bytes=3 * GIB, pinned_bytes=GIB)["bar"]
    sizes = {part["name"]: part["size"] for part in bar}
    assert sum(sizes.values()) == FIT["budget_bytes"]
    assert (sizes["pinned models"], sizes["other models"], sizes["paged cache"]) == (GIB, 2 * GIB, 4 * GIB)


def test_models_that_would_go_are_named() -> None:
    evicts = [{"name": "small", "memory_bytes": 300 * MIB}, {"name": "large", "memory_bytes": GIB}]
    found = row(verdict="fits_after_eviction", evicts=evicts)
    assert (found["mark"], found["words"]) == ("warn", "Would unload: small (300.0 MiB), large (1.0 GiB).")


def test_models_that_load_or_unload_are_waited_for() -> None:
    found = row(verdict="fits_after_eviction", used_bytes=14 * GIB)
    assert (found["mark"], found["words"]) == ("warn", "Fits once other models have finished loading or unloading.")


def test_what_is_missing_comes_with_numbers_that_fit() -> None:
    found = row(**REQUESTED, verdict="too_large", missing_bytes=400 * MIB, fitting_num_seqs=40, fitting_model_len=1024)
    assert (found["mark"], found["words"]) == ("bad", "Does not fit by 400.0 MiB.")
    assert found["advice"] == "Try at most 40 sequences of 2,048 tokens, or 1,024 tokens with 64 sequences."
    none = row(**REQUESTED, verdict="too_large", missing_bytes=400 * MIB, fitting_num_seqs=None, fitting_model_len=None)
    assert none["advice"].startswith("Smaller numbers don't fit either")


def test_pinned_models_in_the_way_are_the_reason() -> None:
    found = row(verdict="pinned_models_in_the_way", missing_bytes=GIB, pinned_bytes=12 * GIB)
    assert found["words"] == "Does not fit by 1.0 GiB: pinned models take 12.0 GiB."


def test_states_of_fewer_sequences_are_said() -> None:
    short = {"full_sequences": 40, "short_bytes": 2 * GIB, "fitting_num_seqs": 40, "fitting_model_len": None}
    found = row(**REQUESTED, **short)
    assert found["mark"] == "warn"
    assert found["words"].endswith("to spare, but its states are 2.0 GiB short of 64 sequences of 2,048 tokens.")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "Loaded here with 4.0 GiB; loaded anew it fits with 10.7 GiB to spare."),
        ({"missing_bytes": GIB}, "Loaded here with 4.0 GiB; loaded anew it does not fit by 1.0 GiB."),
    ],
)
def test_a_loaded_model_says_what_it_has_and_what_a_new_load_would(values: dict[str, Any], words: str) -> None:
    assert row(verdict="resident", resident_bytes=4 * GIB, **values)["words"] == words


def test_without_paged_states_any_length_fits() -> None:
    assert "64 sequences of any length" in row(bytes_per_token=0)["split"]
