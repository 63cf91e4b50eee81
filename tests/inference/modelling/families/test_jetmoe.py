"""JetMoe: sizes of experts of attention, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.jetmoe import build_spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, Shapes, norms, outer, view_of

CONFIG: dict[str, Any] = {"num_key_value_heads": 2, "kv_channels": 6, "num_experts_per_tok": 2, "rms_norm_eps": 1e-3}


def shapes() -> Shapes:
    found, layer = outer(), "model.layers.0."
    for base, inputs, inner in ((f"{layer}self_attention.experts.", 12, 12), (f"{layer}mlp.", 40, 20)):
        found |= {
            f"{base}input_linear.weight": (4, inputs, HIDDEN), f"{base}output_linear.weight": (4, HIDDEN, inner),
            f"{base}router.layer.weight": (4, HIDDEN), f"{base}bias": (HIDDEN,),
        }  # fmt: skip
    return found | norms(layer) | {f"{layer}self_attention.kv_proj.weight": (24, HIDDEN)}


def test_heads_are_those_of_the_chosen_experts() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"tie_word_embeddings": False}))
    mixer, moe = spec.layers[0].token_mixer, spec.layers[0].channel_mixer
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) == (4, 2, 6)
    assert (mixer.head_experts.num_experts, mixer.head_experts.top_k) == (4, 2)
    assert (moe.num_experts, moe.intermediate_size, moe.output_bias) == (4, 20, True)
    assert spec.layers[0].token_norm == NormSpec("rms", 1e-6) and spec.final_norm == NormSpec("rms", 1e-3)
    counted = spec.num_parameters() - spec.num_active_parameters() - 2 * 40 * HIDDEN - HIDDEN
    assert counted == 2 * (2 * 12 * HIDDEN + 40 * HIDDEN + 20 * HIDDEN), "half of the experts of both kinds"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"kv_channels": 8}, "kv_channels"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"intermediate_size": 24}, "intermediate_size"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | {"tie_word_embeddings": False} | change))
    assert caught.value.param == param
