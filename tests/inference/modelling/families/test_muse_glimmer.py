"""Muse Glimmer: norms, windows and rotations of layers, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.muse_glimmer import build_spec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 6}
NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
LAYERS = 5


def shapes(prefix: str = "model.") -> dict[str, tuple[int, ...]]:
    found = outer(prefix=prefix)
    for number in range(LAYERS):
        layer = f"{prefix}layers.{number}."
        found |= norms(layer, *NORMS) | attention(f"{layer}self_attn.") | mlp(f"{layer}mlp.")
        found[f"{layer}self_attn.gate_proj.weight"] = (HIDDEN, HIDDEN)
    return found


def test_every_fourth_layer_from_the_end_is_full_and_has_no_positions() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    mixers = [layer.token_mixer for layer in spec.layers]
    assert all(isinstance(mixer, AttentionSpec) for mixer in mixers)
    assert [mixer.sliding_window for mixer in mixers] == [None, 6, 6, 6, None]
    assert [mixer.rope is None for mixer in mixers] == [True, False, False, False, True]
    assert mixers[0].scale == pytest.approx(3.87 / 2) and mixers[0].output_gate and not mixers[0].gate_per_head
    assert mixers[0].qk_norm == spec.embedding_norm == NormSpec("rms", 1e-5, weightless=True)
    assert spec.final_norm == NormSpec("rms", 1e-5)
    layer = spec.layers[0]
    assert layer.token_norm == layer.channel_norm == NormSpec("rms", 1e-5, 1.0)
    assert layer.token_post_norm == layer.channel_post_norm == NormSpec("rms", 1e-8, 1.0)
    assert (spec.logits_softcap, spec.logits_multiplier) == (20.0, 0.19611613513818404)


def test_rotations_are_stated_for_each_layer() -> None:
    rope = {"rope_type": "default", "rope_theta": 300.0}
    stated = {"layer_rope_theta": [300.0, 0, 300, 0, 0], "rope_parameters": rope}
    spec = build_spec(view_of(shapes(), CONFIG | stated))
    ropes = [layer.token_mixer.rope for layer in spec.layers]
    assert [None if rope is None else rope.theta for rope in ropes] == [300.0, None, 300.0, None, None]


def test_the_text_model_within_the_whole() -> None:
    names = shapes("model.language_model.") | {
        "model.vision_tower.ln_pre.weight": (8,), "model.vision_adapter.fc1.weight": (8, 8),
        "model.vision_projection.weight": (HIDDEN, 8),
    }  # fmt: skip
    spec = build_spec(view_of(names, {"text_config": CONFIG, "vision_config": {}}))
    assert spec.layers == build_spec(view_of(shapes(), CONFIG)).layers


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * LAYERS}, "layer_types"),
        ({"layer_rope_theta": [0, 1e4]}, "layer_rope_theta"),
        ({"layer_rope_theta": [0, 2e4, 0, 0, 0]}, "layer_rope_theta"),
        ({"head_dim": 8}, "head_dim"),
        ({"qk_scale_factor": 0}, "qk_scale_factor"),
        ({"hidden_activation": "tanh"}, "hidden_activation"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param


def test_a_gate_that_is_missing_is_named() -> None:
    names = {name: shape for name, shape in shapes().items() if name != "model.layers.2.self_attn.gate_proj.weight"}
    with pytest.raises(CheckpointError, match=r"layers\.2\.self_attn\.gate_proj\.weight"):
        build_spec(view_of(names, CONFIG))
