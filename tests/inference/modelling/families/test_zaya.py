"""ZAYA: windows and rotations by layer, a head with a bias, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.zaya import build_spec
from inference.modelling.specs.zaya import ConvolvedAttentionSpec, MemoryMoESpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, experts, norms, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 6,
    "layer_types": ["hybrid", "hybrid_sliding"],
}  # fmt: skip
SCALES = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    found |= {f"model.input_hidden_states_{name}": (HIDDEN,) for name in ("scale", "bias")}
    for number in range(2):
        layer = f"model.layers.{number}."
        attention, gate = f"{layer}self_attn.", f"{layer}mlp.gate."
        found |= norms(layer) | experts(f"{layer}mlp.experts.")
        for name in ("post_attention_residual_scale", "post_mlp_residual_scale"):
            found |= {f"{layer}{name}.{leaf}": (HIDDEN,) for leaf in SCALES}
        found |= {
            f"{attention}o_proj.weight": (HIDDEN, 16), f"{attention}qk_norm.temp": (2,),
            f"{attention}qkv_proj.q_proj.weight": (16, HIDDEN), f"{attention}qkv_proj.k_proj.weight": (8, HIDDEN),
            f"{attention}qkv_proj.v_proj_current.weight": (4, HIDDEN),
            f"{attention}qkv_proj.v_proj_delayed.weight": (4, HIDDEN),
            f"{attention}qkv_proj.conv_qk_depthwise.weight": (24, 1, 2),
            f"{attention}qkv_proj.conv_qk_depthwise.bias": (24,),
            f"{attention}qkv_proj.conv_qk_grouped.weight": (24, 4, 3),
            f"{attention}qkv_proj.conv_qk_grouped.bias": (24,),
            f"{gate}down_proj.weight": (6, HIDDEN), f"{gate}down_proj.bias": (6,), f"{gate}balancing_biases": (5,),
            f"{gate}router_mlp.norm.weight": (6,), f"{gate}router_mlp.out_proj.weight": (5, 6),
        }  # fmt: skip
        for name in ("fc1", "fc2"):
            found |= {f"{gate}router_mlp.{name}.weight": (6, 6), f"{gate}router_mlp.{name}.bias": (6,)}
        if number:
            found[f"{gate}router_states_scale"] = (6,)
    return found


def test_layers_differ_in_window_and_rotation() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    first, second = (layer.token_mixer for layer in spec.layers)
    assert isinstance(first, ConvolvedAttentionSpec) and isinstance(second, ConvolvedAttentionSpec)
    assert (first.channel_kernel, first.head_kernel, first.scale) == (2, 3, 0.5)
    assert (first.sliding_window, second.sliding_window) == (None, 6)
    assert first.rope is not None and second.rope is not None
    assert (first.rope.theta, first.rope.rotary_dim) == (5e6, 2) and second.rope.theta == 1e4
    assert spec.tie_word_embeddings and spec.scales_embedding
    assert all(layer.scales_residual for layer in spec.layers)


def test_the_first_router_has_no_memory_to_read() -> None:
    first, second = (layer.channel_mixer for layer in build_spec(view_of(shapes(), CONFIG)).layers)
    assert isinstance(first, MemoryMoESpec) and isinstance(second, MemoryMoESpec)
    assert (first.reads_memory, second.reads_memory) == (False, True)
    assert (first.num_experts, first.num_choices, first.router_width) == (4, 5, 6)


def test_a_tied_head_with_a_bias_is_a_head_of_its_own() -> None:
    found = shapes() | {"lm_head.bias": (VOCAB,)}
    spec = build_spec(view_of(found, CONFIG | {"lm_head_bias": True}))
    assert spec.head_bias and not spec.tie_word_embeddings
    assert spec.parameters["lm_head.weight"].pieces[0].name == "model.embed_tokens.weight"


def test_published_files_have_a_type_beside_those_of_the_layers() -> None:
    ropes = {kind: {"rope_type": "default", "rope_theta": 7e3} for kind in ("hybrid", "hybrid_sliding")}
    mixer = build_spec(view_of(shapes(), CONFIG | {"rope_parameters": ropes | {"rope_type": "default"}})).layers[0]
    assert isinstance(mixer.token_mixer, ConvolvedAttentionSpec) and mixer.token_mixer.rope is not None
    assert (mixer.token_mixer.rope.theta, mixer.token_mixer.rope.rotary_dim) == (7e3, 4)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"layer_types": ["hybrid", "full_attention"]}, "layer_types"),
        ({"sliding_window": None}, "sliding_window"),
        ({"cca_time0": 3}, "cca_time0"),
        ({"cca_time1": 2}, "cca_time1"),
        ({"router_hidden_size": 5}, "router_hidden_size"),
        ({"num_experts": 5}, "num_experts"),
        ({"moe_intermediate_size": 9}, "moe_intermediate_size"),
        ({"num_attention_heads": 8}, "head_dim"),
        ({"lm_head_bias": True}, "lm_head_bias"),
        ({"rope_parameters": {"hybrid": {"rope_type": "default", "rope_theta": 1e4}}}, "rope_parameters"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.mlp.gate.balancing_biases", (4,)),
        ("model.layers.1.self_attn.qkv_proj.conv_qk_grouped.weight", (24, 4)),
        ("model.layers.1.self_attn.qkv_proj.conv_qk_grouped.weight", (24, 5, 3)),
        ("model.layers.1.self_attn.qkv_proj.v_proj_delayed.weight", (5, HIDDEN)),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointError):
        build_spec(view_of(shapes() | {name: shape}, CONFIG))
