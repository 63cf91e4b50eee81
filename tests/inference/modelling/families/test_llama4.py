"""Llama 4: which layers rotate, see chunks and have experts, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.llama4 import build_spec
from tests.inference.modelling.families.headers import HIDDEN, attention, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "head_dim": 4, "intermediate_size": 8, "intermediate_size_mlp": 24,
    "interleave_moe_layer_step": 2, "attention_chunk_size": 16,
}  # fmt: skip


def shapes(count: int = 4) -> dict[str, tuple[int, ...]]:
    found = outer()
    for number in range(count):
        layer = f"model.layers.{number}."
        found |= norms(layer, "input_layernorm", "post_attention_layernorm") | attention(f"{layer}self_attn.")
        base = f"{layer}feed_forward."
        if number % 2:
            found |= mlp(f"{base}shared_expert.", 8)
            found[f"{base}router.weight"] = (3, HIDDEN)
            found[f"{base}experts.gate_up_proj"] = (3, HIDDEN, 16)
            found[f"{base}experts.down_proj"] = (3, 8, HIDDEN)
        else:
            found |= mlp(base, 24)
    return found


def test_every_fourth_layer_has_no_positions_and_sees_everything() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    mixers = [layer.token_mixer for layer in spec.layers]
    assert [mixer.chunk_size for mixer in mixers] == [16, 16, 16, None]
    assert [mixer.rope is None for mixer in mixers] == [False, False, False, True]
    assert [mixer.qk_norm is None for mixer in mixers] == [False, False, False, True]
    assert [mixer.query_growth for mixer in mixers] == [None, None, None, (0.1, 8192)]
    assert (mixers[0].rope.theta, mixers[0].rope.interleaved) == (500000.0, True)
    assert [layer.kind for layer in spec.layers] == ["attention+mlp", "attention+moe"] * 2
    moe = spec.layers[1].channel_mixer
    assert (moe.num_experts, moe.top_k, moe.shared_intermediate_size, moe.scales_input) == (3, 1, 8, True)


def test_a_factor_of_the_rotation_puts_the_norm_behind_it() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    mixer = build_spec(view_of(shapes(), CONFIG | {"rope_scaling": yarn})).layers[0].token_mixer
    assert mixer.qk_norm_after_rope


def test_null_means_no_chunks() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"attention_chunk_size": None}))
    assert {layer.token_mixer.chunk_size for layer in spec.layers} == {None}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"interleave_moe_layer_step": 1}, "moe_layers, interleave_moe_layer_step"),
        ({"moe_layers": [0]}, "moe_layers, interleave_moe_layer_step"),
        ({"no_rope_layers": [1, 1]}, "no_rope_layers"),
        ({"num_local_experts": 4}, "num_local_experts"),
        ({"intermediate_size": 9}, "intermediate_size"),
        ({"intermediate_size_mlp": 9}, "intermediate_size_mlp"),
        ({"num_experts_per_tok": 4}, "num_experts_per_tok"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param
