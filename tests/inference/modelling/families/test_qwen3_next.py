"""Qwen3-Next and Qwen 3.5: sizes of the linear layers from shapes, gates beside the queries."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.qwen3_next import build_spec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.linear import GatedDeltaSpec
from tests.inference.modelling.families.headers import HIDDEN, mlp, norms, outer, view_of

CONFIG = {
    "model_type": "qwen3_5_text",
    "num_attention_heads": 4,
    "linear_num_key_heads": 2,
    "full_attention_interval": 2,
}
KEY, VALUE, HEADS, WIDTH = 6, 5, 4, 8


def shapes() -> dict:
    found = outer()
    for layer in ("model.layers.0.", "model.layers.1."):
        found |= norms(layer, "input_layernorm", "post_attention_layernorm") | mlp(f"{layer}mlp.")
    delta, attention = "model.layers.0.linear_attn.", "model.layers.1.self_attn."
    channels = 2 * 2 * KEY + HEADS * VALUE
    found |= {
        f"{delta}in_proj_qkv.weight": (channels, HIDDEN), f"{delta}in_proj_z.weight": (HEADS * VALUE, HIDDEN),
        f"{delta}in_proj_b.weight": (HEADS, HIDDEN), f"{delta}in_proj_a.weight": (HEADS, HIDDEN),
        f"{delta}conv1d.weight": (channels, 1, 4), f"{delta}A_log": (HEADS,), f"{delta}dt_bias": (HEADS,),
        f"{delta}norm.weight": (VALUE,), f"{delta}out_proj.weight": (HIDDEN, HEADS * VALUE),
        f"{attention}q_proj.weight": (4 * 2 * WIDTH, HIDDEN), f"{attention}o_proj.weight": (HIDDEN, 4 * WIDTH),
    }  # fmt: skip
    found |= {f"{attention}{name}_proj.weight": (2 * WIDTH, HIDDEN) for name in "kv"}
    return found | {f"{attention}{name}_norm.weight": (WIDTH,) for name in "qk"}


def test_sizes_come_from_the_shapes() -> None:
    first, second = (layer.token_mixer for layer in build_spec(view_of(shapes(), CONFIG)).layers)
    assert isinstance(first, GatedDeltaSpec) and isinstance(second, AttentionSpec)
    assert (first.num_key_heads, first.num_value_heads, first.key_head_dim, first.value_head_dim) == (2, 4, KEY, VALUE)
    assert (second.num_heads, second.num_kv_heads, second.head_dim, second.output_gate) == (4, 2, WIDTH, True)
    assert second.rope is not None and second.rope.rotary_dim == WIDTH // 4


@pytest.mark.parametrize(
    "change",
    [
        {"full_attention_interval": 3}, {"layer_types": ["full_attention"] * 2}, {"linear_num_key_heads": 3},
        {"linear_value_head_dim": 9}, {"linear_key_head_dim": 7}, {"linear_conv_kernel_dim": 3},
        {"linear_num_value_heads": 8},
    ],
)  # fmt: skip
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(TensorShapeMismatch, match=next(iter(change))):
        build_spec(view_of(shapes(), CONFIG | change))


def test_the_module_that_drafts_tokens_is_left_out_by_name() -> None:
    build_spec(view_of(shapes() | {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN)}, CONFIG))


def test_a_layer_of_no_kind_is_refused() -> None:
    found = {name: shape for name, shape in shapes().items() if ".1.self_attn." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.1"):
        build_spec(view_of(found, CONFIG))
