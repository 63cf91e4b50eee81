"""Source: from which tensors of a checkpoint a parameter is put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inference.modelling.specs.parts import Shape


@dataclass(frozen=True, slots=True)
class Piece:
    """(Part of) one tensor of the checkpoint, as a contribution to a parameter.

    The steps apply in this order. ``{e}`` in ``name`` stands for the expert's number.

    Attributes:
        name: Tensor name.
        parts: See the first axis as so many equal parts, one behind the other, which become a new first axis (DBRX).
        index: Take this entry of the first axis (``{e}`` sources may use -1: the expert's own number).
        transpose: Swap the last two axes (stored in × out).
        rows: Take rows start to stop of the first axis.
        per_group: (size, start, stop): see the first axis as groups of ``size`` rows and take rows start to
            stop of each (DeepSeek's kv_b_proj holds k and v head by head).
        stride: (start, step): take every step-th row from start (interleaved gate and up).
        reshape: View the result in this shape, of as many values.
    """

    name: str
    parts: int | None = None
    index: int | None = None
    transpose: bool = False
    rows: tuple[int, int] | None = None
    per_group: tuple[int, int, int] | None = None
    stride: tuple[int, int] | None = None
    reshape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """How one parameter is put together: ``pieces`` concatenated along the first axis.

    With ``num_experts`` this is done once for each expert number and the results are stacked along a
    new first axis. A source without ``num_experts`` may still be a tensor that is stacked on disk.
    """

    pieces: tuple[Piece, ...]
    num_experts: int | None = None

    def tensor_names(self) -> Iterator[str]:
        """Names of all tensors that are read, experts spelled out."""
        for piece in self.pieces:
            if "{e}" in piece.name and self.num_experts is not None:
                for expert in range(self.num_experts):
                    yield piece.name.replace("{e}", str(expert))
            else:
                yield piece.name


def tensor(name: str) -> Source:
    """The plain case: the parameter is the tensor ``name``."""
    return Source((Piece(name),))


def concatenated(*names: str) -> Source:
    """The tensors ``names`` one below the other."""
    return Source(tuple(Piece(name) for name in names))
