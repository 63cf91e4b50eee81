"""Muse Spark: norms, gates and experts of layers, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, MissingTensor
from inference.modelling.families.muse_spark import build_spec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec, MoESpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 6, "num_local_experts": 4,
    "num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
NORMS = ("input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
LATENT = 12


def shapes(prefix: str = "model.") -> dict[str, tuple[int, ...]]:
    found = outer(prefix=prefix)
    for number in range(2):
        layer = f"{prefix}layers.{number}."
        found |= norms(layer, *NORMS) | attention(f"{layer}self_attn.")
        found[f"{layer}self_attn.gate_proj.weight"] = (HIDDEN, HIDDEN)
        for name in ("attention", "feedforward"):
            found[f"{layer}post_{name}_residual_gate.gate"] = (HIDDEN,)
    base = f"{prefix}layers.1.mlp."
    found |= {f"{base}experts.gate_up_proj": (4, 16, LATENT), f"{base}experts.down_proj": (4, LATENT, 8)}
    found |= {f"{base}gate.weight": (4, HIDDEN), f"{base}gate.e_score_correction_bias": (4,)}
    found |= {f"{base}pre_expert_proj.weight": (LATENT, HIDDEN), f"{base}post_expert_proj.weight": (HIDDEN, LATENT)}
    found |= {f"{base}{name}.weight": (LATENT,) for name in ("pre_expert_norm", "experts.post_expert_norm")}
    return found | mlp(f"{prefix}layers.0.mlp.")


def test_layers_have_gates_and_norms_of_four_kinds() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    for layer in spec.layers:
        assert layer.residual_temperature == 0.3
        assert layer.token_norm == layer.channel_norm == NormSpec("rms", 1e-5, 1.0)
        assert layer.token_post_norm is not None and layer.token_post_norm.weightless
        assert layer.channel_post_norm == NormSpec("rms", 1e-8, 1.0, scales_input=True)
    first, second = (layer.token_mixer for layer in spec.layers)
    assert isinstance(first, AttentionSpec) and isinstance(second, AttentionSpec)
    assert (first.sliding_window, second.sliding_window) == (6, None)
    assert first.rope is not None and first.rope.theta == 500_000.0 and second.rope is None
    assert first.heads_norm == first.qk_norm == spec.embedding_norm == NormSpec("rms", 1e-5, weightless=True)
    assert first.scale == pytest.approx(5.4730064863875 / 2)


def test_experts_work_in_a_narrower_space() -> None:
    dense, sparse = (layer.channel_mixer for layer in build_spec(view_of(shapes(), CONFIG)).layers)
    assert isinstance(dense, MLPSpec) and isinstance(sparse, MoESpec)
    assert (sparse.latent_size, sparse.num_experts, sparse.top_k) == (LATENT, 4, 2)
    assert sparse.latent_norm == NormSpec("rms", 1e-5, 1.0) and sparse.correction_bias
    assert sparse.expert_norm == NormSpec("rms", 1e-8, 1.0, scales_input=True)
    assert sparse.router_multiplier == 0.1767766952966369 and sparse.normalise_eps == 1e-15


def test_the_text_model_within_the_whole() -> None:
    names = shapes("model.language_model.") | {
        "model.vision_adapter.fc1.weight": (8, 8), "model.audio_tower.norm.weight": (8,),
    }  # fmt: skip
    spec = build_spec(view_of(names, {"text_config": CONFIG, "vision_config": {}, "audio_config": {}}))
    assert spec.layers == build_spec(view_of(shapes(), CONFIG)).layers


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"mlp_layer_types": None}, "mlp_layer_types"),
        ({"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types"),
        ({"moe_hidden_size": 8}, "moe_hidden_size"),
        ({"moe_intermediate_size": 9}, "moe_intermediate_size"),
        ({"num_local_experts": 5}, "num_local_experts"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"residual_gate_temperature": 0}, "residual_gate_temperature"),
        ({"layer_rope_theta": [1e4, 0]}, "layer_rope_theta"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param


def test_routing_needs_its_bias() -> None:
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    found = {key: shape for key, shape in shapes().items() if key != name}
    with pytest.raises(MissingTensor, match="is missing from the checkpoint") as caught:
        build_spec(view_of(found, CONFIG))
    assert caught.value.param == name
