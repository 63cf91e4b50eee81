"""Command A+: its first layers, and how shared experts are added."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.cohere2_moe import build_spec
from tests.inference.modelling.families.experts import EXPERT, expert_layers
from tests.inference.modelling.families.headers import WIDTH, view_of

CONFIG = {"num_attention_heads": 4, "num_experts_per_tok": 2, "num_shared_experts": 2, "first_k_dense_replace": 1}


def build(**stated: Any):
    shapes = expert_layers("deee", norms=("input_layernorm",), shared=2)
    return build_spec(view_of(shapes, CONFIG | {"sliding_window": 8, "sliding_window_pattern": 3} | stated))


@pytest.mark.parametrize(
    ("stated", "windows", "rotates"),
    [
        ({}, [None, 8, 8, None], [True, True, True, False]),
        ({"prefix_dense_sliding_window_pattern": 2}, [8, 8, 8, None], [True, True, True, False]),
        ({"layer_types": ["full_attention"] * 4}, [None] * 4, [True, False, False, False]),
    ],
)
def test_layers_without_experts_rotate_even_if_they_are_full(stated, windows, rotates) -> None:
    mixers = [layer.token_mixer for layer in build(**stated).layers]
    assert [mixer.sliding_window for mixer in mixers] == windows
    assert [mixer.rope is not None for mixer in mixers] == rotates


def test_the_mean_or_the_sum_with_shared_experts() -> None:
    mixer = build().layers[1].channel_mixer
    assert (mixer.routed_scaling_factor, mixer.shared_multiplier, mixer.normalise_top_k) == (0.5, 0.5, True)
    mixer = build(shared_expert_combination_strategy="sum", expert_selection_fn="sigmoid").layers[1].channel_mixer
    assert (mixer.routed_scaling_factor, mixer.shared_multiplier, mixer.scoring) == (1.0, 1.0, "sigmoid")


@pytest.mark.parametrize(
    ("stated", "error"),
    [
        ({"first_k_dense_replace": 2}, TensorShapeMismatch),
        ({"mlp_layer_types": ["sparse"] * 4}, TensorShapeMismatch),
        ({"mlp_layer_types": ["sparse"]}, CorruptCheckpoint),
        ({"prefix_dense_intermediate_size": WIDTH + 1}, TensorShapeMismatch),
        ({"intermediate_size": EXPERT + 1}, TensorShapeMismatch),
        ({"num_shared_experts": 1}, TensorShapeMismatch),
        ({"expert_selection_fn": "other"}, CorruptCheckpoint),
        ({"shared_expert_combination_strategy": "product"}, CorruptCheckpoint),
    ],
)
def test_contradictions_are_refused(stated: dict[str, Any], error: type) -> None:
    with pytest.raises(error, match=next(iter(stated))):
        build(**stated)
