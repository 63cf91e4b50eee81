"""GPT-J and CodeGen: their rotation, and CodeGen's order of rows."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.gptj import build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, view_of

CONFIG = {"model_type": "codegen", "n_head": 4, "rotary_dim": 2}


def shapes() -> dict[str, tuple[int, ...]]:
    found = {
        "wte.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN), "lm_head.bias": (VOCAB,),
        "h.0.attn.qkv_proj.weight": (3 * HIDDEN, HIDDEN), "h.0.attn.out_proj.weight": (HIDDEN, HIDDEN),
        "h.0.mlp.fc_in.weight": (24, HIDDEN), "h.0.mlp.fc_in.bias": (24,), "h.0.mlp.fc_out.weight": (HIDDEN, 24),
        "h.0.mlp.fc_out.bias": (HIDDEN,), "h.0.attn.causal_mask": (1, 1, 8, 8),
    }  # fmt: skip
    return found | {f"{norm}.{leaf}": (HIDDEN,) for norm in ("h.0.ln_1", "ln_f") for leaf in ("weight", "bias")}


def test_rows_lie_in_four_parts_values_before_keys() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    pieces = spec.parameters["layers.0.token_mixer.qkv_proj.weight"].pieces
    assert [piece.per_group for piece in pieces] == [(12, 0, 4), (12, 8, 12), (12, 4, 8)]
    rope = spec.layers[0].token_mixer.rope
    assert (rope.rotary_dim, rope.interleaved, spec.head_bias) == (2, True, True)


@pytest.mark.parametrize(
    ("stated", "error", "words"),
    [
        ({"rotary_dim": 5}, CorruptCheckpoint, "rotary_dim"),
        ({"n_inner": 25}, TensorShapeMismatch, "n_inner 25"),
        ({"n_embd": 17}, TensorShapeMismatch, "n_embd 17"),
    ],
)
def test_contradictions_are_refused(stated: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        build_spec(view_of(shapes(), CONFIG | stated))
