"""Sources: the tensors that a parameter is read from."""

from __future__ import annotations

from inference.modelling.specs.sources import Piece, Source, concatenated, tensor


def test_a_tensor_and_several_one_below_the_other() -> None:
    assert tensor("a") == Source((Piece("a"),))
    assert concatenated("a", "b") == Source((Piece("a"), Piece("b")))
    assert list(concatenated("a", "b").tensor_names()) == ["a", "b"]


def test_names_of_experts_are_spelled_out() -> None:
    source = Source((Piece("experts.{e}.gate"), Piece("shared", index=-1)), num_experts=2)
    assert list(source.tensor_names()) == ["experts.0.gate", "experts.1.gate", "shared"]
    assert list(Source((Piece("experts.{e}.gate"),)).tensor_names()) == ["experts.{e}.gate"]
