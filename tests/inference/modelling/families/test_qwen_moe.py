"""Qwen MoE: sparse and dense layers by their tensors, shared experts, windows."""

from __future__ import annotations

import pytest

from inference.modelling.families.qwen_moe import build_spec
from inference.modelling.layer_specs import MLPSpec, MoESpec
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


def test_a_config_that_contradicts_the_routers_gives_a_warning() -> None:
    view = view_of(shapes(), CONFIG | {"mlp_only_layers": []})
    build_spec(view)
    assert any("layer 0 experts" in warning for warning in view.facts.warnings)


@pytest.mark.parametrize(("last", "windows"), [(2, (7, None)), (0, (None, None))])
def test_windows_of_every_other_layer(last: int, windows: tuple) -> None:
    config = CONFIG | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": last}
    assert tuple(layer.token_mixer.sliding_window for layer in build_spec(view_of(shapes(), config)).layers) == windows
