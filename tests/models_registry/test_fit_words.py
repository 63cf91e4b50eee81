"""Whether a model fits, in words."""

from __future__ import annotations

import pytest

from models_registry.fit_words import fit_rows

MIB, GIB = 1 << 20, 1 << 30
FIT = {
    "worker_id": "w-0", "verdict": "fits", "weights_bytes": 257 * MIB, "needed_bytes": 257 * MIB + 5 * GIB,
    "budget_bytes": 16 * GIB, "used_bytes": 0, "pinned_bytes": 0, "bytes_per_token": 1 << 10,
    "bytes_per_sequence": MIB, "full_sequences": 64, "max_model_len": 2048, "max_num_seqs": 128,
}  # fmt: skip


def test_weights_and_reserved_states_are_told_apart() -> None:
    (row,) = fit_rows([FIT], 1024, 16)
    assert row["split"].startswith("A load takes 257.0 MiB weights + 5.0 GiB reserved states: room for 64 sequences")
    assert row["wish"] == "257.0 MiB of weights and 16 × 2.0 MiB of state are 289.0 MiB: room enough in 16.0 GiB."
    assert (row["mark"], row["words"]) == ("good", "It fits beside what is loaded.")


def test_limits_of_the_settings_are_said() -> None:
    (row,) = fit_rows([FIT], 4096, 200)
    assert "the longest sequence is 2,048 tokens, and 128 are computed at once, the rest waits." in row["wish"]


@pytest.mark.parametrize(
    ("verdict", "mark"), [("too_large", "bad"), ("fits_after_eviction", "warn"), ("something new", "warn")]
)
def test_verdicts_have_marks(verdict: str, mark: str) -> None:
    assert fit_rows([{**FIT, "verdict": verdict, "bytes_per_token": 0}], 1, 1)[0]["mark"] == mark


def test_too_much_is_said() -> None:
    assert "more than 16.0 GiB, which can be had" in fit_rows([FIT], 2048, 60_000)[0]["wish"]
