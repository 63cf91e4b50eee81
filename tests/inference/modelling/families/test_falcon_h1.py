"""Falcon-H1: where the factors of config.json end up, and contradictions."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.falcon_h1 import build_spec
from inference.modelling.specs.layers import AttentionSpec, Mamba2Spec, MLPSpec
from inference.modelling.specs.parallel import ParallelSpec
from tests.inference.modelling.families.headers import attention, mamba2, mlp, norms, outer, view_of

LAYER = "model.layers.0."
SHAPES = {
    **outer("final_layernorm"),
    **norms(LAYER, "input_layernorm", "pre_ff_layernorm"),
    **attention(f"{LAYER}self_attn."),
    **mamba2(f"{LAYER}mamba."),
    **mlp(f"{LAYER}feed_forward."),
}
CONFIG = {
    "num_attention_heads": 4, "key_multiplier": 0.5, "attention_in_multiplier": 2.0, "ssm_out_multiplier": 3.0,
    "ssm_multipliers": [1, 2, 3, 4, 5], "mlp_multipliers": [6, 7], "embedding_multiplier": 8, "lm_head_multiplier": 9,
    "mamba_n_groups": 1,
}  # fmt: skip


def test_each_factor_has_its_place() -> None:
    spec = build_spec(view_of(SHAPES, CONFIG))
    layer = spec.layers[0]
    assert isinstance(layer.token_mixer, ParallelSpec) and isinstance(layer.channel_mixer, MLPSpec)
    first, second = layer.token_mixer.branches
    assert isinstance(first.mixer, AttentionSpec) and first.mixer.scale == 0.5 * 4**-0.5
    assert (first.input_multiplier, first.output_multiplier) == (2.0, 1.0)
    assert isinstance(second.mixer, Mamba2Spec) and second.mixer.multipliers == (1, 2, 3, 4, 5)
    assert (second.input_multiplier, second.output_multiplier) == (1.0, 3.0)
    assert second.mixer.norm_before_gate
    assert (layer.channel_mixer.gate_multiplier, layer.channel_mixer.output_multiplier) == (6, 7)
    assert (spec.embedding_multiplier, spec.logits_multiplier) == (8, 9)


@pytest.mark.parametrize("change", [{"mamba_rms_norm": False}, {"mamba_d_ssm": 64}])
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(TensorShapeMismatch) as caught:
        build_spec(view_of(SHAPES, CONFIG | change))
    assert next(iter(change)) in caught.value.message


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match="ssm_multipliers has 4 numbers; it must have 5"):
        build_spec(view_of(SHAPES, CONFIG | {"ssm_multipliers": [1, 2, 3, 4]}))
