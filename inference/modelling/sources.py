"""Find which stored tensors make up a parameter, and whether they only have to lie one below the other."""

from __future__ import annotations

from collections.abc import Callable

from inference.modelling.specs.parts import Shape
from inference.modelling.specs.sources import Piece, Source


def stored_names(source: Source) -> list[str]:
    """Of the tensors that a parameter is made of."""
    if source.num_experts is None:
        return [piece.name for piece in source.pieces]
    names = [piece.name.replace("{e}", str(number)) for number in range(source.num_experts) for piece in source.pieces]
    return list(dict.fromkeys(names))  # a stack of all experts is one tensor


def joined_names(source: Source, shape: Shape, shape_of: Callable[[str], Shape]) -> list[str] | None:
    """The tensors of a parameter that are its rows as they are, in order; None: they aren't.

    Args:
        source: What the parameter is made of.
        shape: Its shape.
        shape_of: Shape of a stored tensor.
    """
    names = stored_names(source)
    count = 1 if source.num_experts is None else source.num_experts
    inner = shape if source.num_experts is None else shape[1:]
    if any(piece != Piece(piece.name) for piece in source.pieces) or len(names) != count * len(source.pieces):
        return None
    if not inner or (source.num_experts is not None and count != shape[0]):
        return None
    shapes = [shape_of(name) for name in names]
    for first in range(0, len(names), len(source.pieces)):
        parts = shapes[first : first + len(source.pieces)]
        if any(part[1:] != inner[1:] for part in parts) or sum(part[0] for part in parts) != inner[0]:
            return None
    return names
