"""The rows that a piece takes of a stored tensor, alike for weights and for changes of them."""

from __future__ import annotations

import torch

from inference.modelling.specs.sources import Piece


def take_rows(piece: Piece, values: torch.Tensor) -> torch.Tensor:
    """The rows that a piece takes of (rows, …)."""
    if piece.rows is not None:
        values = values[piece.rows[0] : piece.rows[1]]
    if piece.per_group is not None:
        size, start, stop = piece.per_group
        values = values.reshape(-1, size, *values.shape[1:])[:, start:stop].reshape(-1, *values.shape[1:])
    if piece.stride is not None:
        values = values[piece.stride[0] :: piece.stride[1]]
    return values
