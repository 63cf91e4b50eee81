"""Facts that people set: they reach the spec, and illegal ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.errors import (
    InvalidRequest,
)
from inference.modelling.families.config import Confidence
from models_registry.detection.inspection import inspect_checkpoint
from tests.models_registry.detection.builders import (
    fact,
)


def test_overrides_reach_the_spec(hybrid: Path) -> None:
    overrides = {
        "top_k": 3, "rope_theta": 5e5, "rms_norm_eps": 1e-3, "max_seq_len": 7, "head_dim": 4, "vocabulary": "llama3",
        "a_override": "-(1..H)", "mamba2.num_groups": 2,
    }  # fmt: skip
    found = inspect_checkpoint(hybrid, overrides=overrides)
    spec = found.spec
    assert spec.layers[1].channel_mixer.top_k == 3  # type: ignore[union-attr]
    assert spec.layers[2].token_mixer.rope.theta == 5e5  # type: ignore[union-attr]
    assert spec.final_norm.eps == 1e-3
    assert spec.max_position_embeddings == 7
    assert spec.layers[2].token_mixer.head_dim == 4  # type: ignore[union-attr]
    assert spec.layers[0].token_mixer.a_override == "-(1..H)"  # type: ignore[union-attr]
    assert spec.layers[0].token_mixer.num_groups == 2  # type: ignore[union-attr]
    assert found.tokenizer.name == "llama3"
    for name in ("moe.top_k", "rope.theta", "norm.eps", "attention.head_dim", "vocabulary", "a_override"):
        assert fact(found, name).confidence is Confidence.OVERRIDE, name


@pytest.mark.parametrize(
    "overrides",
    [
        {"unknown": 1}, {"top_k": 0}, {"top_k": 9}, {"top_k": 1.5}, {"top_k": True}, {"top_k": None}, {"top_k": "2"},
        {"rope_theta": float("nan")}, {"rope_theta": float("inf")}, {"rope_theta": 10**400}, {"norm.eps": -1},
        {"eps": 1e-3, "norm.eps": 1e-3}, {"top_k": 1, "moe.top_k": 1},
        {"max_position_embeddings": 2**40}, {"a_override": "1"}, {"vocabulary": ""},
        {"tie_word_embeddings": 1}, {"tie_word_embeddings": True}, {"attention.num_heads": 3},
    ],
)  # fmt: skip
def test_illegal_overrides_are_refused(hybrid: Path, overrides: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        inspect_checkpoint(hybrid, overrides=overrides)


def test_an_override_without_effect_is_refused(llama: Path) -> None:
    for overrides in ({"a_override": "-(1..H)"}, {"top_k": 2}, {"mamba2.num_groups": 1}):
        with pytest.raises(InvalidRequest, match="no layer of this model has it"):
            inspect_checkpoint(llama, overrides=overrides)


@pytest.mark.parametrize(
    ("name", "value"),
    [("norm.eps", 0.125), ("rope.theta", 77.0), ("attention.head_dim", 8), ("max_position_embeddings", 9),
     ("activation", "gelu")],
)  # fmt: skip
def test_overrides_of_a_huggingface_family(llama: Path, name: str, value: Any) -> None:
    found = inspect_checkpoint(llama, overrides={name: value})
    assert (fact(found, name).value, fact(found, name).confidence) == (value, Confidence.OVERRIDE)
