"""BLOOM: two names of the number of heads, which sets the slopes of the scores."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, view_of

WIDTHS = {
    "self_attention.query_key_value": (3 * HIDDEN, HIDDEN), "self_attention.dense": (HIDDEN, HIDDEN),
    "mlp.dense_h_to_4h": (4 * HIDDEN, HIDDEN), "mlp.dense_4h_to_h": (HIDDEN, 4 * HIDDEN),
    "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
}  # fmt: skip


def shapes() -> Shapes:
    found: Shapes = {"word_embeddings.weight": (VOCAB, HIDDEN)}
    owners = {f"h.0.{name}": shape for name, shape in WIDTHS.items()}
    for name, shape in {**owners, "word_embeddings_layernorm": (HIDDEN,), "ln_f": (HIDDEN,)}.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found


def build(**config: Any) -> ModelSpec:
    return family_builder("bloom")(view_of(shapes(), config))


def test_either_name_says_the_number_of_heads() -> None:
    for config in ({"n_head": 4}, {"num_attention_heads": 4}, {"num_attention_heads": 4, "n_head": 4}):
        mixer = build(**config).layers[0].token_mixer
        assert mixer.num_heads == len(mixer.slopes) == 4


def test_two_numbers_of_heads_are_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match="n_head is '8', but num_attention_heads is '4'") as caught:
        build(num_attention_heads=4, n_head=8)
    assert caught.value.param == "n_head"
