"""Falcon: its layouts of heads and norms."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor, TensorShapeMismatch
from inference.modelling.families.falcon import build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, view_of

GROUPS = {"num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True}


def shapes(*norms: str, rows: int = 2 * HIDDEN) -> dict:
    base = "transformer.h.0."
    found = {f"{base}{name}.{leaf}": (HIDDEN,) for name in norms for leaf in ("weight", "bias")}
    matrices = {
        "self_attention.query_key_value": (rows, HIDDEN), "self_attention.dense": (HIDDEN, HIDDEN),
        "mlp.dense_h_to_4h": (24, HIDDEN), "mlp.dense_4h_to_h": (HIDDEN, 24),
    }  # fmt: skip
    found |= {f"{base}{name}.weight": shape for name, shape in matrices.items()}
    outer = {"word_embeddings.weight": (VOCAB, HIDDEN), "ln_f.weight": (HIDDEN,), "ln_f.bias": (HIDDEN,)}
    return found | {f"transformer.{name}": shape for name, shape in outer.items()}


def test_heads_of_keys_follow_their_queries() -> None:
    spec = build_spec(view_of(shapes("ln_attn", "ln_mlp"), GROUPS))
    layer, pieces = spec.layers[0], spec.parameters["layers.0.token_mixer.qkv_proj.weight"].pieces
    assert layer.is_parallel and layer.channel_norm is not None
    assert (layer.token_mixer.num_kv_heads, layer.token_mixer.head_dim) == (2, 4)
    assert [piece.per_group for piece in pieces] == [(16, 0, 8), (16, 8, 12), (16, 12, 16)]


@pytest.mark.parametrize(
    ("stated", "error", "words"),
    [
        ({"num_kv_heads": 3}, TensorShapeMismatch, "with 3 heads of k and v"),
        ({"num_ln_in_parallel_attn": 1}, MissingTensor, "input_layernorm"),
        ({"ffn_hidden_size": 25}, TensorShapeMismatch, "ffn_hidden_size 25"),
    ],
)
def test_contradictions_are_refused(stated: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        build_spec(view_of(shapes("ln_attn", "ln_mlp"), GROUPS | stated))
