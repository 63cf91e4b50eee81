"""Kolibri 1: its names in published files, and its layers."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.kolibri1 import BIAS, build_spec
from tests.inference.modelling.families.experts import EXPERT, expert_layers
from tests.inference.modelling.families.headers import view_of

CONFIG = {"num_attention_heads": 4, "num_experts_per_tok": 2}
PUBLISHED = ("input_layernorm", "post_attn_norm", "post_attention_layernorm", "post_ffn_norm")
RENAMED = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


@pytest.mark.parametrize(
    ("norms", "bias"), [(PUBLISHED, BIAS), (RENAMED, "mlp.gate.e_score_correction_bias")], ids=["published", "renamed"]
)
def test_both_namings(norms: tuple[str, ...], bias: str) -> None:
    shapes = expert_layers("eeeee", norms=norms)
    for number in range(5):
        base = f"model.layers.{number}."
        shapes |= {f"{base}{bias}": (3,)} | {f"{base}self_attn.{name}_norm.weight": (4,) for name in "qk"}
    spec = build_spec(view_of(shapes, CONFIG | {"sliding_window": 8}))
    assert [layer.token_mixer.sliding_window for layer in spec.layers] == [8, 8, 8, 8, None]
    assert [layer.token_mixer.rope is None for layer in spec.layers] == [False] * 4 + [True]
    mixer = spec.layers[0].channel_mixer
    assert (mixer.ranks_logits, mixer.correction_bias, mixer.normalise_top_k) == (True, True, False)
    assert mixer.shared_intermediate_size == EXPERT
    with pytest.raises(TensorShapeMismatch, match="shared_expert_intermediate_size"):
        build_spec(view_of(shapes, CONFIG | {"shared_expert_intermediate_size": 11}))
