"""Prefix, layers, embedding, head and dtype of a decoder."""

from __future__ import annotations

import pytest

from inference.errors import (
    CorruptCheckpoint,
    MissingTensor,
    TensorShapeMismatch,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from inference.modelling.families.config import Confidence
from inference.modelling.families.decoder_layout import layer_numbers, read_layout
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, fact, llama, view_of


def test_sizes_come_from_the_embedding_and_the_context_from_the_config() -> None:
    layout = read_layout(view_of(llama(3), {"max_position_embeddings": 64}, dtype="BF16"))
    assert (layout.prefix, layout.embedding, layout.head) == ("model.", "model.embed_tokens.weight", "lm_head.weight")
    assert (layout.num_layers, layout.hidden_size, layout.vocab_size) == (3, HIDDEN, VOCAB)
    assert (layout.dtype, layout.max_position_embeddings) == ("bfloat16", 64)
    assert layout.layer(2) == "model.layers.2."


def test_the_first_prefix_with_an_embedding_is_used() -> None:
    shapes = {name.removeprefix("model."): shape for name, shape in llama(1).items()}
    layout = read_layout(view_of(shapes))
    assert (layout.prefix, layout.layer(0)) == ("", "layers.0.")


def test_a_context_that_the_config_lacks_is_a_default_of_low_confidence() -> None:
    view = view_of(llama(1))
    assert read_layout(view, default_max_position_embeddings=99).max_position_embeddings == 99
    assert fact(view, "max_position_embeddings") == (99, Confidence.LOW)


def test_layers_beyond_the_config_are_refused_unless_they_are_for_prediction() -> None:
    view = view_of(llama(3), {"num_hidden_layers": 2})
    with pytest.raises(TensorShapeMismatch, match=r"config\.json says 2 layers, but the tensors have 3 .*layers\.2"):
        read_layout(view)
    layout = read_layout(view, prediction_layers=1)
    assert (layout.num_layers, layout.num_prediction_layers) == (2, 1)
    with pytest.raises(TensorShapeMismatch, match="says 1 layers and 1 for prediction, but the tensors have 3"):
        read_layout(view_of(llama(3), {"num_hidden_layers": 1}), prediction_layers=1)


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size"])
def test_sizes_that_contradict_the_embedding_are_refused(key: str) -> None:
    with pytest.raises(TensorShapeMismatch, match=rf"says {key} 99, but .*embed_tokens\.weight has shape \[40, 16\]"):
        read_layout(view_of(llama(1), {key: 99}))


def test_a_head_is_tied_where_it_is_missing_or_the_config_states_it() -> None:
    shapes = llama(1)
    assert read_layout(view_of(shapes, {"tie_word_embeddings": True})).head is None
    del shapes["lm_head.weight"]
    assert read_layout(view_of(shapes)).head is None
    untied = {"tie_word_embeddings": False}
    with pytest.raises(MissingTensor, match=r"tie_word_embeddings false, but there is no lm_head\.weight"):
        read_layout(view_of(shapes, untied))
    assert read_layout(view_of(shapes, untied, {"tie_word_embeddings": True})).head is None


def test_broken_layouts_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"no embedding: model\.embed_tokens\.weight or"):
        read_layout(view_of({"lm_head.weight": (VOCAB, HIDDEN)}))
    shapes = llama(3)
    gap = {name: shape for name, shape in shapes.items() if ".1." not in name}
    with pytest.raises(MissingTensor, match="layer 1 is missing"):
        read_layout(view_of(gap))
    with pytest.raises(MissingTensor, match=r"config\.json says 4 layers"):
        read_layout(view_of(shapes, {"num_hidden_layers": 4}))
    with pytest.raises(UnsupportedFormat, match="stored as I8"):
        read_layout(view_of(shapes, dtype="I8"))
    with pytest.raises(CorruptCheckpoint, match="layer number 999999 is out of range"):
        read_layout(view_of(shapes | {"model.layers.999999.x.weight": (1,)}))


def test_layer_numbers_are_sorted_and_distinct() -> None:
    view = view_of({"h.layers.10.a": (1,), "h.layers.2.a": (1,), "h.layers.2.b": (1,), "layers.7.a": (1,)})
    assert layer_numbers(view.tensors, "h.layers.") == [2, 10]
