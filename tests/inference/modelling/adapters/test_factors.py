"""Factors take the steps of a piece as the weights do: their product is the piece of the whole change."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.adapters.factors import take_factors, take_rows
from inference.modelling.spec import Piece

LEFT = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
RIGHT = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("piece", "take"),
    [
        (Piece("w"), lambda change: change),
        (Piece("w", rows=(2, 7)), lambda change: change[2:7]),
        (Piece("w", stride=(1, 3)), lambda change: change[1::3]),
        (Piece("w", per_group=(4, 1, 3)), lambda change: change.view(3, 4, 8)[:, 1:3].reshape(6, 8)),
        (Piece("w", transpose=True), lambda change: change.T),
    ],
    ids=["all", "rows", "stride", "groups", "transposed"],
)
def test_a_product_of_factors_is_the_piece_of_the_change(piece: Piece, take) -> None:
    left, right = take_factors(piece, LEFT, RIGHT, None)
    torch.testing.assert_close(left @ right, take(LEFT @ RIGHT))


def test_rows_of_vectors_are_taken_alike() -> None:
    assert take_rows(Piece("w", rows=(3, 5)), torch.arange(12)).tolist() == [3, 4]
    assert take_rows(Piece("w", per_group=(6, 0, 2)), torch.arange(12)).tolist() == [0, 1, 6, 7]
