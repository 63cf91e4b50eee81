"""The factors of an adapter's ΔW = scale · B A, put into the rows of our parameters as the weights were."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from inference.modelling.lora.plan import MatrixPlan, not_finite
from inference.modelling.specs.sources import Piece
from inference.modelling.weights.piece_rows import take_rows

Factors = tuple[torch.Tensor, torch.Tensor]
"""Left (rows, r) and right (r, inputs): their product is a change of a parameter's rows."""


def check_finite(name: str, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of an adapter.

    Raises:
        CorruptCheckpoint: A value is infinite or no number, as after a training that has diverged.
    """
    if not value.isfinite().all():
        raise not_finite(name)
    return value


def matrix_factors(plan: MatrixPlan, a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[int | None, Factors]]:
    """The factors for each matrix that a module's place has.

    Args:
        plan: Of the module.
        a, b: Its tensors, as the file has them.

    Yields:
        The number of the expert (None: the parameter is no stack) and its factors.
    """
    if plan.num_stacked:
        yield from _stacked_factors(plan, a, b)
        return
    left, right = (a.mT, b.mT) if plan.is_swapped else (b, a)
    yield plan.place.expert, take_factors(plan.place.piece, left, right, plan.place.expert)


def _stacked_factors(plan: MatrixPlan, a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[int | None, Factors]]:
    # PEFT keeps E matrices A one below the other, and the columns of the matrices B side by side, rank by rank.
    rights = a.view(plan.num_stacked, plan.rank, -1)
    lefts = b.view(b.shape[0], plan.rank, plan.num_stacked).permute(2, 0, 1)
    if plan.has_swapped_factors:
        lefts, rights = rights.mT, lefts.mT
    for expert in range(plan.place.stored[0]):
        piece = plan.place.piece
        if piece.index is None:
            yield expert, take_factors(piece, lefts[expert], rights[expert], None)
        else:
            yield expert, take_factors(piece, lefts, rights, expert)


def take_factors(piece: Piece, left: torch.Tensor, right: torch.Tensor, expert: int | None) -> Factors:
    """What a piece takes of left · right, as factors: each step of ``Piece`` is one of the left, or exchanges both."""
    if piece.parts is not None:
        left = left.reshape(piece.parts, -1, left.shape[-1])
    if piece.index is not None:
        index = expert if piece.index == -1 and expert is not None else piece.index
        left = left[index]
        right = right[index] if right.dim() == 3 else right
    if piece.transpose:
        left, right = right.mT, left.mT
    return take_rows(piece, left), right
