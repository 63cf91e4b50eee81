"""Factors taken by the steps of a piece are factors of what the steps take of the product."""

from __future__ import annotations

import pytest
import torch

from inference.errors import CorruptCheckpoint
from inference.modelling.adapters.factors import check_finite, matrix_factors, take_factors
from inference.modelling.lora.modules import Place
from inference.modelling.lora.plan import MatrixPlan
from inference.modelling.lora.shapes import piece_shape
from inference.modelling.specs.sources import Piece
from inference.modelling.weights.loader import _read_piece

PIECES = [
    Piece("w"),
    Piece("w", transpose=True),
    Piece("w", rows=(3, 9)),
    Piece("w", per_group=(6, 1, 4)),
    Piece("w", stride=(1, 2)),
    Piece("w", transpose=True, rows=(2, 7)),
    Piece("w", parts=4, index=2),
    Piece("w", parts=4, index=-1, transpose=True),
]


class Files:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def read(self, name: str) -> torch.Tensor:
        return self.value


@pytest.mark.parametrize("piece", PIECES, ids=str)
def test_factors_of_a_piece(piece: Piece) -> None:
    left, right = torch.randn(12, 3), torch.randn(3, 8)
    expected = _read_piece(Files(left @ right), piece, 1, None)
    taken = take_factors(piece, left, right, 1)
    torch.testing.assert_close(taken[0] @ taken[1], expected)
    assert piece_shape(piece, (12, 8)) == tuple(expected.shape)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_no_numbers_are_refused(value: float, dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 4, dtype=dtype)
    assert check_finite("a", tensor) is tensor
    tensor[2, 1] = value
    with pytest.raises(CorruptCheckpoint, match="a of the adapter has values that are infinite or no numbers"):
        check_finite("a", tensor)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_stacks_are_pefts(is_swapped: bool) -> None:
    count, rank, rows, columns = 3, 2, 5, 7
    outputs, inputs = (columns, rows) if is_swapped else (rows, columns)
    a, b = torch.randn(rank * count, inputs), torch.randn(outputs, rank * count)
    place = Place("experts", "down_proj", Piece("w"), (count, rows, columns), 0, rows)
    plan = MatrixPlan("w", place, "a", "b", rank, 1.0, inputs, num_stacked=count, has_swapped_factors=is_swapped)
    # As PEFT writes it: einsum("o r e, e r i -> e o i").
    weight_a, weight_b = a.reshape(count, -1, inputs), b.reshape(outputs, -1, count)
    delta = torch.einsum("ore,eri->eio" if is_swapped else "ore,eri->eoi", weight_b, weight_a)
    for expert, (left, right) in matrix_factors(plan, a, b):
        assert expert is not None
        torch.testing.assert_close(left @ right, delta[expert])
