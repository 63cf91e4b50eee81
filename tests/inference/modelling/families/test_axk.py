"""A.X-K1 and A.X-K2: norms behind experts, gates, both spellings of the files."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor, TensorShapeMismatch
from inference.modelling.families.axk import build_spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, Shapes, view_of
from tests.inference.modelling.families.latent import layers

FIRST = {"model_type": "axk1", "num_attention_heads": 2, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
SECOND = {"model_type": "axk2", "num_attention_heads": 2, "num_experts_per_tok": 2}


def post_norms(*numbers: int, within: str = "") -> Shapes:
    return {f"model.layers.{number}.{within}post_mlp_layernorm.weight": (HIDDEN,) for number in numbers}


def with_gates(*, is_of_hub: bool = True) -> Shapes:
    down, up = ("W_down", "W_up") if is_of_hub else ("mlp.fc1", "mlp.fc2")
    found = layers(2, indexed=(0, 1), gates=True)
    for name in ("0.input_layernorm", "1.input_layernorm", "1.post_attention_layernorm"):
        base = f"model.layers.{name}."
        found[f"{base}norm.weight"] = found.pop(f"{base}weight")
        found |= {f"{base}{down}.weight": (3, HIDDEN), f"{base}{up}.weight": (HIDDEN, 3)}
    if not is_of_hub:
        found = {name.replace("q_b_proj", "q_gate_proj"): shape for name, shape in found.items()}
    return found


def test_only_experts_have_a_norm_behind_them() -> None:
    spec = build_spec(view_of(layers(2) | post_norms(0, 1), FIRST))
    assert [layer.channel_post_norm for layer in spec.layers] == [None, NormSpec("rms", 1e-6)]
    inner = build_spec(view_of(layers(2) | post_norms(1, within="mlp."), FIRST))
    assert inner.layers == spec.layers
    with pytest.raises(MissingTensor, match="post_mlp_layernorm"):
        build_spec(view_of(layers(2), FIRST))


def test_both_spellings_of_the_gates_are_the_same_model() -> None:
    spec = build_spec(view_of(with_gates(), SECOND))
    assert spec.layers == build_spec(view_of(with_gates(is_of_hub=False), SECOND)).layers
    assert [(layer.token_gate_rank, layer.channel_gate_rank) for layer in spec.layers] == [(3, 0), (3, 3)]
    mixer, moe = spec.layers[1].token_mixer, spec.layers[1].channel_mixer
    assert mixer.joins_latents and mixer.output_gate and mixer.qk_nope_head_dim == 4 and mixer.indexer.top_k == 2048
    assert spec.parameters["layers.0.token_mixer.gate_proj.weight"].pieces[0].per_group == (9, 6, 9)
    assert (moe.num_expert_groups, moe.group_floor, moe.routed_scaling_factor) == (1, 0.0, 2.5)


def test_a_rank_that_config_json_contradicts_is_refused() -> None:
    with pytest.raises(TensorShapeMismatch) as caught:
        build_spec(view_of(with_gates(), SECOND | {"gated_norm_rank": 16}))
    assert caught.value.param == "gated_norm_rank"
