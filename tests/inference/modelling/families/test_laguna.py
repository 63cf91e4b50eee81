"""Laguna: heads of each layer, gates, rotations, and its names in published files."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.attention_decoder import PRE_NORMS
from inference.modelling.families.laguna import build_spec
from tests.inference.modelling.families.experts import expert_layers
from tests.inference.modelling.families.headers import HIDDEN, Shapes, attention, view_of

KINDS = ["full_attention", "sliding_attention"]
HEADS = [4, 6]
CONFIG = {
    "num_attention_heads": 4, "num_attention_heads_per_layer": HEADS, "num_experts_per_tok": 2, "layer_types": KINDS,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}  # fmt: skip


def shapes(*, published: bool, gate: int = 1) -> Shapes:
    found = expert_layers("ee", norms=tuple(PRE_NORMS.values()))
    for number, heads in enumerate(HEADS):
        base = f"model.layers.{number}."
        found |= attention(f"{base}self_attn.", q_rows=4 * heads)
        found |= {f"{base}self_attn.{name}_norm.weight": (4,) for name in "qk"}
        found |= {f"{base}self_attn.g_proj.weight": (gate * heads, HIDDEN)}
        found |= {f"{base}mlp.{'experts' if published else 'gate'}.e_score_correction_bias": (3,)}
    old, new = "mlp.shared_experts.", "mlp.shared_expert." if published else "mlp.shared_experts."
    return {name.replace(old, new): shape for name, shape in found.items()}


@pytest.mark.parametrize("published", [True, False])
def test_layers_have_heads_and_rotations_of_their_own(published: bool) -> None:
    spec = build_spec(view_of(shapes(published=published), CONFIG))
    mixers = [layer.token_mixer for layer in spec.layers]
    assert [(mixer.num_heads, mixer.rope.rotary_dim, mixer.rope.theta) for mixer in mixers] == [
        (4, 2, 5e5),
        (6, 4, 1e4),
    ]
    assert all(mixer.gate_per_head and mixer.gate_activation == "softplus" for mixer in mixers)
    assert all(layer.channel_mixer.correction_bias for layer in spec.layers)


def test_gates_of_values() -> None:
    view = view_of(shapes(published=True, gate=4), CONFIG | {"gating": "per-element"})
    assert not build_spec(view).layers[0].token_mixer.gate_per_head


@pytest.mark.parametrize(
    ("stated", "error", "words"),
    [
        ({"num_attention_heads_per_layer": [4]}, CorruptCheckpoint, "1 entries for 2 layers"),
        ({"num_attention_heads_per_layer": [4, 4]}, TensorShapeMismatch, "num_attention_heads 4"),
        ({"gating": "per-element"}, TensorShapeMismatch, "g_proj"),
        ({"gating": "other"}, CorruptCheckpoint, "gating"),
    ],
)
def test_contradictions_are_refused(stated: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        build_spec(view_of(shapes(published=True), CONFIG | stated))
