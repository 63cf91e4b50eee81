"""LFM3: kinds of layers, windows, rotations and gates, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.lfm3 import build_spec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.linear import ShortConvSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "conv_L_cache": 7, "sliding_window": 6,
    "layer_types": ["conv", "sliding_attention", "full_attention"],
}  # fmt: skip


def shapes() -> dict[str, tuple[int, ...]]:
    found = outer("embedding_norm")
    for number in range(3):
        layer = f"model.layers.{number}."
        found |= norms(layer, "operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm")
        found |= mlp(f"{layer}feed_forward.", names=("w1", "w3", "w2"))
    for number in (1, 2):
        base = f"model.layers.{number}.self_attn."
        found |= attention(base) | {f"{base}{name}_norm.weight": (4,) for name in "qk"}
        found[f"{base}gate_proj.weight"] = (4, HIDDEN)
    conv = "model.layers.0.conv."
    found |= {f"{conv}in_proj.weight": (3 * HIDDEN, HIDDEN), f"{conv}conv.weight": (HIDDEN, 1, 7)}
    return found | {f"{conv}out_proj.weight": (HIDDEN, HIDDEN)}


def test_layers_differ_in_kind_window_and_rotation() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    first, second, third = (layer.token_mixer for layer in spec.layers)
    assert first == ShortConvSpec(HIDDEN, 7)
    assert isinstance(second, AttentionSpec) and isinstance(third, AttentionSpec)
    assert (second.sliding_window, third.sliding_window) == (6, None)
    assert second.rope is not None and third.rope is not None
    assert (second.rope.theta, second.rope.turning_pairs) == (1e4, None)
    assert (third.rope.theta, third.rope.rotary_dim, third.rope.turning_pairs) == (1e6, 4, 1)
    assert second.gate_per_head and second.output_gate and second.qk_norm is not None
    assert all(layer.token_post_norm and layer.channel_post_norm for layer in spec.layers)


def test_the_gate_is_found_under_both_names() -> None:
    renamed = {name.replace("gate_proj", "g_proj"): shape for name, shape in shapes().items()}
    spec = build_spec(view_of(renamed, CONFIG))
    assert spec.parameters["layers.1.token_mixer.gate_proj.weight"].pieces[0].name.endswith("g_proj.weight")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"conv_L_cache": 3}, "conv_L_cache"),
        ({"layer_types": ["conv", "conv", "full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": None}, "layer_types"),
        ({"layer_types": ["conv", "chunked_attention", "full_attention"]}, "chunked_attention"),
        ({"head_dim": 8}, "head_dim"),
        ({"use_attention_gate": False}, "gate_proj"),
        ({"use_sandwich_norm": False}, "post_operator_norm"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "sliding_attention"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=named):
        build_spec(view_of(shapes(), config))
