"""Hunyuan: the base of its rotation, and how many experts each layer's tokens go to."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.hunyuan import build_spec
from inference.modelling.specs.layers import AttentionSpec, MoESpec
from tests.inference.modelling.families.headers import HIDDEN, experts, llama, mlp, view_of

CONFIG = {"num_attention_heads": 4, "head_dim": 4}


def shapes(*, moe: bool = False) -> dict:
    found = llama(2)
    for number in range(2):
        base = f"model.layers.{number}."
        found |= {f"{base}self_attn.{name}_layernorm.weight": (4,) for name in ("query", "key")}
        if moe:
            found = {name: shape for name, shape in found.items() if f"{base}mlp." not in name}
            found |= experts(base + "mlp.experts.") | mlp(base + "mlp.shared_mlp.")
            found |= {f"{base}mlp.gate.wg.weight": (4, HIDDEN)}
    return found


def test_alpha_stretches_the_base_whatever_the_length() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0, "factor": 1.0}
    mixer = build_spec(view_of(shapes(), CONFIG | {"rope_parameters": rope})).layers[0].token_mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None
    assert mixer.rope.theta == pytest.approx(1e4 * 1000.0**2)
    assert mixer.rope.scaling is None and mixer.qk_norm_after_rope


@pytest.mark.parametrize(("top_k", "expected"), [(2, [2, 2]), ([1, 3], [1, 3])])
def test_each_layer_has_its_number_of_experts(top_k: Any, expected: list[int]) -> None:
    config = CONFIG | {"model_type": "hunyuan_v1_moe", "moe_topk": top_k}
    mixers = [layer.channel_mixer for layer in build_spec(view_of(shapes(moe=True), config)).layers]
    assert [mixer.top_k for mixer in mixers if isinstance(mixer, MoESpec)] == expected


@pytest.mark.parametrize("top_k", [[2], [2, 0], [2, 2, 2]])
def test_a_list_that_does_not_fit_the_layers_is_refused(top_k: list[int]) -> None:
    config = CONFIG | {"model_type": "hunyuan_v1_moe", "moe_topk": top_k}
    with pytest.raises(CorruptCheckpoint, match=rf"moe_topk has {len(top_k)} entries.*each of 2 layers"):
        build_spec(view_of(shapes(moe=True), config))
