"""Shapes of embeddings of n-grams, their integers, and what is kept between steps."""

from __future__ import annotations

from inference.modelling.specs.ngram import NGramSpec
from inference.modelling.specs.parts import NormSpec

SPEC = NGramSpec(
    hidden_size=8, num_streams=2, order=3, heads_per_order=4, head_dim=5, rows=60, conv_kernel=4, eos_token_id=0,
    norm=NormSpec(),
)  # fmt: skip


def test_shapes_follow_heads_and_streams() -> None:
    shapes = SPEC.parameter_shapes()
    assert SPEC.num_heads == 8
    assert shapes["key_proj.weight"] == (16, 40) and shapes["value_proj.weight"] == (8, 40)
    assert shapes["conv1d.weight"] == (16, 1, 4) and shapes["query_norm.weight"] == (2, 8)
    assert {name: shapes[name] for name in SPEC.integer_parameters()} == {
        "hash.multipliers": (3,), "hash.sizes": (8,), "hash.offsets": (8,),
    }  # fmt: skip


def test_tokens_and_inputs_of_the_convolution_are_kept() -> None:
    assert [(part.name, part.per, part.shape, part.dtype) for part in SPEC.state()] == [
        ("ngram_tokens", "sequence", (2,), "float32"), ("ngram_conv_state", "sequence", (16, 9), "state"),
    ]  # fmt: skip
