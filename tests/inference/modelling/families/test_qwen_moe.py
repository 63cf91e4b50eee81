"""Qwen MoE: sparse and dense layers by their tensors, shared experts, windows."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.qwen_moe import build_spec
from inference.modelling.specs.layers import MLPSpec, MoESpec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, mlp, norms, outer, view_of

CONFIG = {"model_type": "qwen2_moe", "num_attention_heads": 4, "mlp_only_layers": [0]}


def shapes() -> dict:
    found = outer()
    for number in range(2):
        found |= norms(f"model.layers.{number}.") | attention(f"model.layers.{number}.self_attn.")
    base = "model.layers.1.mlp."
    found |= mlp("model.layers.0.mlp.") | experts(f"{base}experts.") | mlp(f"{base}shared_expert.", 6)
    return found | {f"{base}gate.weight": (4, HIDDEN), f"{base}shared_expert_gate.weight": (1, HIDDEN)}


def test_layers_with_a_router_have_experts() -> None:
    view = view_of(shapes(), CONFIG)
    dense, sparse = (layer.channel_mixer for layer in build_spec(view).layers)
    assert isinstance(dense, MLPSpec) and isinstance(sparse, MoESpec)
    assert (sparse.num_experts, sparse.top_k, sparse.shared_intermediate_size, sparse.shared_gate) == (4, 4, 6, True)
    assert not sparse.normalise_top_k
    assert not view.facts.warnings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp_only_layers": []}, r"gives layer 0 experts \(mlp_only_layers.*tensors of a dense MLP"),
        ({"num_experts": 5}, "num_experts 5, but the tensors have 4"),
        ({"moe_intermediate_size": 9}, "moe_intermediate_size 9, but the tensors have 8"),
        ({"shared_expert_intermediate_size": 7}, "shared_expert_intermediate_size 7, but the tensors have 6"),
        ({"intermediate_size": 25}, "intermediate_size 25, but the tensors have 24"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(change: dict, message: str) -> None:
    with pytest.raises(TensorShapeMismatch, match=message):
        build_spec(view_of(shapes(), CONFIG | change))


def test_shared_experts_belong_to_qwen2_moe_with_a_gate() -> None:
    found = shapes()
    del found["model.layers.1.mlp.shared_expert_gate.weight"]
    with pytest.raises(MissingTensor, match="shared_expert_gate"):
        build_spec(view_of(found, CONFIG))
    norms_of_q_and_k = {
        f"model.layers.{number}.self_attn.{name}_norm.weight": (4,) for number in range(2) for name in "qk"
    }
    with pytest.raises(UnsupportedArchitecture, match=r"no place in qwen3_moe: .*shared_expert"):
        build_spec(view_of(shapes() | norms_of_q_and_k, CONFIG | {"model_type": "qwen3_moe", "num_experts_per_tok": 2}))


@pytest.mark.parametrize(("last", "windows"), [(2, (7, None)), (0, (None, None))])
def test_windows_of_every_other_layer(last: int, windows: tuple) -> None:
    config = CONFIG | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": last}
    assert tuple(layer.token_mixer.sliding_window for layer in build_spec(view_of(shapes(), config)).layers) == windows
