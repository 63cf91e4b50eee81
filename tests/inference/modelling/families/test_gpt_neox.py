"""GPT-NeoX and Persimmon: q, k and v head by head."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.gpt_neox import build_spec
from inference.modelling.specs.layers import AttentionSpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, view_of

CONFIG = {"num_attention_heads": 4, "rotary_pct": 0.5, "rotary_emb_base": 500}


def shapes() -> dict:
    base = "gpt_neox.layers.0."
    found = {"gpt_neox.embed_in.weight": (VOCAB, HIDDEN), "embed_out.weight": (VOCAB, HIDDEN)}
    for name in (f"{base}input_layernorm", f"{base}post_attention_layernorm", "gpt_neox.final_layer_norm"):
        found |= {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}
    matrices = {
        "attention.query_key_value": (3 * HIDDEN, HIDDEN), "attention.dense": (HIDDEN, HIDDEN),
        "mlp.dense_h_to_4h": (24, HIDDEN), "mlp.dense_4h_to_h": (HIDDEN, 24),
    }  # fmt: skip
    for name, shape in matrices.items():
        found |= {f"{base}{name}.weight": shape, f"{base}{name}.bias": shape[:1]}
    return found | {f"{base}attention.bias": (1, 1, 8, 8), f"{base}attention.rotary_emb.inv_freq": (1,)}


def test_the_hubs_naming_and_its_constants() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None
    assert (mixer.rope.rotary_dim, mixer.rope.theta, mixer.qkv_bias, spec.layers[0].is_parallel) == (
        2,
        500.0,
        True,
        True,
    )
    pieces = spec.parameters["layers.0.token_mixer.qkv_proj.weight"].pieces
    assert [piece.per_group for piece in pieces] == [(12, 0, 4), (12, 4, 8), (12, 8, 12)]


def test_heads_that_do_not_divide_the_rows_are_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match="5 attention heads, but 48 rows"):
        build_spec(view_of(shapes(), CONFIG | {"num_attention_heads": 5}))
