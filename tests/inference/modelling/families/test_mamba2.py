"""Mamba-2: sizes from the shapes, limits of the time steps, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.mamba2 import build_spec
from inference.modelling.families.registry import family_builder
from inference.modelling.specs.layers import Mamba2Spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, view_of

CONFIG: dict[str, Any] = {"num_heads": 4, "head_dim": 8, "state_size": 6, "n_groups": 2, "conv_kernel": 4}


def shapes(prefix: str = "backbone.") -> Shapes:
    base = f"{prefix}layers.0."
    return {
        f"{prefix}embeddings.weight": (VOCAB, HIDDEN), f"{prefix}norm_f.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN), f"{base}norm.weight": (HIDDEN,),
        f"{base}mixer.in_proj.weight": (32 + 56 + 4, HIDDEN), f"{base}mixer.conv1d.weight": (56, 1, 4),
        f"{base}mixer.conv1d.bias": (56,), f"{base}mixer.dt_bias": (4,), f"{base}mixer.A_log": (4,),
        f"{base}mixer.D": (4,), f"{base}mixer.norm.weight": (32,), f"{base}mixer.out_proj.weight": (HIDDEN, 32),
    }  # fmt: skip


@pytest.mark.parametrize("prefix", ["backbone.", "model."])
def test_sizes_come_from_the_shapes(prefix: str) -> None:
    (layer,) = build_spec(view_of(shapes(prefix), CONFIG)).layers
    mixer = layer.token_mixer
    assert isinstance(mixer, Mamba2Spec) and layer.channel_mixer is None
    assert (mixer.num_heads, mixer.head_dim, mixer.state_size, mixer.num_groups) == (4, 8, 6, 2)
    assert (mixer.intermediate_size, mixer.conv_kernel, mixer.norm_group_size) == (32, 4, 16)


def test_time_steps_have_limits_if_they_are_stated() -> None:
    (layer,) = build_spec(view_of(shapes(), CONFIG | {"time_step_limit": [0.05, 0.6]})).layers
    assert isinstance(layer.token_mixer, Mamba2Spec)
    assert (layer.token_mixer.dt_min, layer.token_mixer.dt_max) == (0.05, 0.6)


@pytest.mark.parametrize(
    "change",
    [{"num_heads": 8}, {"head_dim": 4}, {"state_size": 12}, {"conv_kernel": 3}, {"n_groups": 3}, {"hidden_size": 8}],
)
def test_contradictions_are_refused_by_key(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(change))):
        family_builder("mamba2")(view_of(shapes(), CONFIG | change))
