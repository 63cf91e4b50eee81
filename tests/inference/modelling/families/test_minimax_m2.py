"""MiniMax-M2: its rotated width, in the published naming and transformers'."""

from __future__ import annotations

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.minimax_m2 import build_spec
from inference.modelling.specs.layers import AttentionSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, norms, outer, view_of

CONFIG = {"num_attention_heads": 2, "num_experts_per_tok": 2}


def shapes() -> dict:
    base = "model.layers.0."
    found = outer() | attention(base + "self_attn.") | norms(base, "input_layernorm", "post_attention_layernorm")
    found |= experts(base + "block_sparse_moe.experts.", names=("w1", "w3", "w2"))
    found |= {base + "block_sparse_moe.gate.weight": (4, HIDDEN)}
    found |= {base + "block_sparse_moe.e_score_correction_bias": (4,)}
    return found | {base + "self_attn.q_norm.weight": (HIDDEN,), base + "self_attn.k_norm.weight": (8,)}


@pytest.mark.parametrize("config", [{"rotary_dim": 4}, {"rope_parameters": {"partial_rotary_factor": 0.5}}])
def test_half_of_a_head_is_rotated(config: dict) -> None:
    mixer = build_spec(view_of(shapes(), CONFIG | config)).layers[0].token_mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None
    assert (mixer.rope.rotary_dim, mixer.rope.theta, mixer.qk_norm_per_head) == (4, 5e6, False)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="3 of 8"):
        build_spec(view_of(shapes(), CONFIG | {"rotary_dim": 3}))
