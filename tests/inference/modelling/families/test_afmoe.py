"""AFMoE: which layers have experts, windows and positions."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.afmoe import NAMES, ROUTER, build_spec
from tests.inference.modelling.families.experts import expert_layers
from tests.inference.modelling.families.headers import HIDDEN, view_of

CONFIG = {"num_attention_heads": 4, "num_dense_layers": 1, "global_attn_every_n_layers": 2, "sliding_window": 8}


def shapes() -> dict:
    found = expert_layers("deee", norms=tuple(NAMES.norms.values()), router=ROUTER)
    for number in range(4):
        base = f"model.layers.{number}."
        found |= {f"{base}self_attn.{name}_norm.weight": (4,) for name in "qk"}
        found |= {f"{base}self_attn.gate_proj.weight": (HIDDEN, HIDDEN)}
        found |= {f"{base}mlp.expert_bias": (3,)} if number else {}
    return found


def test_windowed_layers_have_positions_and_full_ones_none() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"mup_enabled": True, "num_experts_per_tok": 2}))
    mixers = [layer.token_mixer for layer in spec.layers]
    assert [(mixer.sliding_window, mixer.rope is not None) for mixer in mixers] == [(8, True), (None, False)] * 2
    assert all(mixer.output_gate for mixer in mixers)
    assert spec.embedding_multiplier == HIDDEN**0.5
    assert [layer.kind for layer in spec.layers] == ["attention+mlp", *["attention+moe"] * 3]


@pytest.mark.parametrize(("key", "value"), [("num_dense_layers", 2), ("num_shared_experts", 2)])
def test_contradictions_are_refused(key: str, value: int) -> None:
    with pytest.raises(TensorShapeMismatch, match=key):
        build_spec(view_of(shapes(), CONFIG | {"num_experts_per_tok": 2, key: value}))
