"""Follow a ``Piece`` of a checkpoint's tensor by its shape alone."""

from __future__ import annotations

import math

from inference.errors import TensorShapeMismatch
from inference.modelling.specs.parts import Shape
from inference.modelling.specs.sources import Piece


def piece_shape(piece: Piece, stored: Shape) -> Shape:
    """Shape of what a piece takes of a tensor of shape ``stored``; the steps are those of ``Piece``, in order.

    Raises:
        TensorShapeMismatch: The tensor hasn't the axes or rows that the piece takes.
    """
    shape = list(stored)
    try:
        if piece.parts is not None:
            shape = [piece.parts, shape[0] // piece.parts, *shape[1:]]
        if piece.index is not None:
            shape = shape[1:]
        if piece.transpose:
            shape[-2], shape[-1] = shape[-1], shape[-2]
        if piece.rows is not None:
            shape[0] = min(piece.rows[1], shape[0]) - piece.rows[0]
        if piece.per_group is not None:
            size, start, stop = piece.per_group
            shape[0] = shape[0] // size * (stop - start)
        if piece.stride is not None:
            shape[0] = len(range(piece.stride[0], shape[0], piece.stride[1]))
    except IndexError:
        raise TensorShapeMismatch(
            f"{piece.name} has shape {list(stored)}, which has too few axes.", param=piece.name
        ) from None
    return tuple(shape) if piece.reshape is None or -1 in piece.reshape else piece.reshape


def num_values(shape: Shape) -> int:
    """Number of values of a tensor."""
    return math.prod(shape)
