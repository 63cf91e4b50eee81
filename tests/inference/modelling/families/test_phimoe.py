"""Phi-3.5-MoE: its rotation's factor, and its experts one by one or stacked."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.phimoe import build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, attention, view_of

ROPE = {
    "type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0, 2.0], "long_factor": [2.0, 4.0],
    "short_mscale": 1.25, "long_mscale": 1.25,
}  # fmt: skip
CONFIG = {"num_attention_heads": 4, "max_position_embeddings": 256, "rope_scaling": ROPE}


def shapes(*, stacked: bool = False) -> dict[str, tuple[int, ...]]:
    base = "model.layers.0."
    found = attention(f"{base}self_attn.") | {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    found |= {"lm_head.weight": (VOCAB, HIDDEN)}
    if stacked:
        found |= {f"{base}mlp.router.weight": (3, HIDDEN), f"{base}mlp.experts.gate_up_proj": (3, 20, HIDDEN)}
        found |= {f"{base}mlp.experts.down_proj": (3, HIDDEN, 10)}
    else:
        base += "block_sparse_moe."
        found |= {f"{base}gate.weight": (3, HIDDEN)}
        for expert in range(3):
            found |= {f"{base}experts.{expert}.{name}.weight": (10, HIDDEN) for name in ("w1", "w3")}
            found |= {f"{base}experts.{expert}.w2.weight": (HIDDEN, 10)}
    norms = ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm")
    return found | {f"model.{norm}.{leaf}": (HIDDEN,) for norm in norms for leaf in ("weight", "bias")}


@pytest.mark.parametrize("stacked", [False, True])
def test_the_router_and_the_rotation(stacked: bool) -> None:
    layer = build_spec(view_of(shapes(stacked=stacked), CONFIG | {"router_jitter_noise": 0.03})).layers[0]
    assert (layer.channel_mixer.scoring, layer.channel_mixer.mixer_width) == ("sparse_mixer", 0.06)
    assert layer.token_mixer.rope.scaling.attention_factor == 1.25


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"long_mscale": 1.5}, UnsupportedArchitecture, "long_mscale 1.5 differ"),
        ({"short_mscale": None}, CorruptCheckpoint, "short_mscale"),
    ],
)
def test_one_factor_for_all_lengths_is_needed(change: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        build_spec(view_of(shapes(), CONFIG | {"rope_scaling": ROPE | change}))
