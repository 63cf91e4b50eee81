"""GPT-BigCode: one head of keys and values, or one for each head of queries."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.gpt_bigcode import build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, view_of

CONFIG = {"n_head": 4}


def shapes(rows: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"wte.weight": (VOCAB, HIDDEN), "wpe.weight": (64, HIDDEN)}
    for name, out, columns in (
        ("attn.c_attn", rows, HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN), ("mlp.c_fc", 24, HIDDEN),
        ("mlp.c_proj", HIDDEN, 24),
    ):  # fmt: skip
        found |= {f"h.0.{name}.weight": (out, columns), f"h.0.{name}.bias": (out,)}
    return found | {f"{n}.{leaf}": (HIDDEN,) for n in ("h.0.ln_1", "h.0.ln_2", "ln_f") for leaf in ("weight", "bias")}


def test_keys_lie_behind_all_queries_or_head_by_head() -> None:
    one = build_spec(view_of(shapes(HIDDEN + 8), CONFIG))
    assert (one.layers[0].token_mixer.num_kv_heads, one.position_rows) == (1, 64)
    assert one.parameters["layers.0.token_mixer.qkv_proj.weight"].pieces[0].per_group is None
    each = build_spec(view_of(shapes(3 * HIDDEN), CONFIG | {"multi_query": False}))
    assert [piece.per_group for piece in each.parameters["layers.0.token_mixer.qkv_proj.bias"].pieces] == [
        (12, 0, 4),
        (12, 4, 8),
        (12, 8, 12),
    ]


@pytest.mark.parametrize("stated", [{"multi_query": False}, {"n_inner": 25}, {"n_embd": 17}])
def test_contradictions_are_refused(stated: dict) -> None:
    with pytest.raises(TensorShapeMismatch):
        build_spec(view_of(shapes(HIDDEN + 8), CONFIG | stated))
