"""MergedTensors: what the stored tensors of a base become when adapters are merged into them.

With W a tensor and Δ_i = f_i(W) - W what adapter i makes of it:

- ``linear``: W + Σ w_i Δ_i.
- ``ties`` (https://arxiv.org/abs/2306.01708): of each Δ_i only the largest values stay, a share of ``density``; of
  those at one place, times w_i, the ones are averaged whose sign has the larger sum.
- ``slerp``: two Δ, of which the direction turns from the first to the second by ``share`` of the angle between them
  (https://dl.acm.org/doi/10.1145/325165.325242).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch

from inference.errors import InvalidRequest, UnsupportedFormat
from inference.modelling.adapters.factors import check_finite, take_factors
from inference.modelling.lora.plan import AdapterPlan, MatrixPlan
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.sources import Piece
from inference.modelling.weights.files import TensorFiles

Method = Literal["linear", "ties", "slerp"]
METHODS: tuple[Method, ...] = get_args(Method)

Read = Callable[[str], torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]
_COLLINEAR = 1e-6
"""Sine of an angle below which a direction doesn't turn but is mixed."""


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One adapter of a merge.

    Attributes:
        plan: Checked against the base.
        weights: Its safetensors file.
        weight: w of its Δ.
    """

    plan: AdapterPlan
    weights: Path
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class MergeRule:
    """How several changes become one.

    Attributes:
        method: ``linear``, ``ties`` or ``slerp``.
        density: Share of the values that ``ties`` keeps.
        share: Of the angle by which ``slerp`` turns; 0: the first adapter, 1: the second.
    """

    method: Method = "linear"
    density: float = 0.5
    share: float = 0.5

    def check(self, count: int) -> None:
        """Refuse a rule that can't be followed for so many adapters.

        Raises:
            InvalidRequest: It can't.
        """
        if self.method not in METHODS:
            raise InvalidRequest(f"method is {self.method!r}; it must be {', '.join(METHODS)}.", param="method")
        if not 0 < self.density <= 1:
            raise InvalidRequest(f"density is {self.density:g}; it must be above 0 and at most 1.", param="density")
        if not 0 <= self.share <= 1:
            raise InvalidRequest(f"share is {self.share:g}; it must be from 0 to 1.", param="share")
        if self.method == "slerp" and count != 2:
            raise InvalidRequest(f"slerp mixes 2 adapters, not {count}; use linear or ties.", param="method")
        if not count:
            raise InvalidRequest("a merge needs at least one adapter.", param="adapter")

    def merge(self, deltas: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
        """The Δ that several become."""
        if self.method == "ties":
            return _ties(deltas, weights, self.density)
        if self.method == "slerp":
            first, second = (delta * weight for delta, weight in zip(deltas, weights, strict=True))
            return _slerp(first, second, self.share)
        return torch.stack([delta * weight for delta, weight in zip(deltas, weights, strict=True)]).sum(0)


def _ties(deltas: Sequence[torch.Tensor], weights: Sequence[float], density: float) -> torch.Tensor:
    """Trim, elect the sign, and average what agrees, as PEFT does: the weights have no part in the election."""
    trimmed = torch.stack([_trimmed(delta, density) for delta in deltas])
    agrees = trimmed.sign() == torch.where(trimmed.sum(0) >= 0, 1, -1)
    weighted = torch.stack([part * weight for part, weight in zip(trimmed, weights, strict=True)])
    return (weighted * agrees).sum(0) / agrees.sum(0).clamp(min=1)


def _trimmed(delta: torch.Tensor, density: float) -> torch.Tensor:
    """The values of greatest magnitude, a share of all; the others are 0."""
    count = int(density * delta.numel())
    kept = torch.zeros(delta.numel(), dtype=torch.bool, device=delta.device)
    kept[delta.abs().flatten().topk(count).indices] = True
    return delta * kept.view(delta.shape)


def _slerp(first: torch.Tensor, second: torch.Tensor, share: float) -> torch.Tensor:
    lengths = first.norm(), second.norm()
    if not lengths[0] or not lengths[1]:
        return (1 - share) * first + share * second
    angle = torch.arccos((first * second).sum().div(lengths[0] * lengths[1]).clamp(-1, 1))
    if angle.sin() < _COLLINEAR:
        return (1 - share) * first + share * second
    left, right = ((1 - share) * angle).sin() / angle.sin(), (share * angle).sin() / angle.sin()
    return left * first + right * second


class MergedTensors:
    """The tensors that a merge changes.

    Args:
        spec: Of the base.
        inputs: The adapters.
        rule: How their changes become one.

    Attributes:
        names: Stored tensors of the base that change.

    Raises:
        InvalidRequest: The rule can't be followed.
        UnsupportedFormat: The base ties its head to an embedding that an adapter changes, or has its experts in a form
            into which they can't be merged.
    """

    def __init__(self, spec: ModelSpec, inputs: Sequence[MergeInput], rule: MergeRule) -> None:
        rule.check(len(inputs))
        self._spec, self._inputs, self._rule = spec, tuple(inputs), rule
        self._changes: dict[str, dict[int, list[Change]]] = defaultdict(lambda: defaultdict(list))
        for number, item in enumerate(inputs):
            for name, change in self._changes_of(item.plan, partial(_read, item.weights)):
                self._changes[name][number].append(change)
        self.names = frozenset(self._changes)

    def change(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """What a stored tensor of the base becomes, in its dtype."""
        base = value.float()
        found = self._changes[name]
        deltas, weights = [], []
        for number, item in enumerate(self._inputs):
            changed = base
            for change in found.get(number, ()):
                changed = change(changed)
            deltas.append(changed - base)
            weights.append(item.weight)
        if len(deltas) == 1 and weights[0] == 1.0 and self._rule.method == "linear":
            return (base + deltas[0]).to(value.dtype)
        return (base + self._rule.merge(deltas, weights)).to(value.dtype)

    def _changes_of(self, plan: AdapterPlan, read: Read) -> Iterator[tuple[str, Change]]:
        """The changes of one adapter, each with the stored tensor that it is for; replaced ones come first."""
        for whole in (*plan.wholes, *plan.biases):
            self._check_tied(whole.place.owner, whole.name)
            yield whole.place.piece.name, _Replaced(whole.name, read)
        seen: set[tuple[str, str]] = set()
        for matrix in plan.matrices:
            self._check_tied(matrix.place.owner, matrix.module)
            if matrix.num_stacked:
                yield from self._stack_changes(matrix, read)
                continue
            name = matrix.place.piece.name
            if matrix.place.expert is not None:
                name = name.replace("{e}", str(matrix.place.expert))
            if (name, matrix.a) not in seen:  # one tensor may have become several parameters
                seen.add((name, matrix.a))
                yield name, _LowRank(matrix, read)
                if matrix.lora_bias is not None:
                    yield self._bias_of(name), _Added(matrix.lora_bias, matrix.scale, read)

    def _stack_changes(self, matrix: MatrixPlan, read: Read) -> Iterator[tuple[str, Change]]:
        parameter = f"{matrix.place.owner}.{matrix.place.leaf}"
        source = self._spec.parameters[parameter]
        if any(piece.name == matrix.place.piece.name for piece in source.pieces):
            yield matrix.place.piece.name, _Stack(matrix, read)
            return
        rows = self._spec.parameter_shapes()[parameter][1] // len(source.pieces)
        for number, piece in enumerate(source.pieces):
            if "{e}" not in piece.name or piece != Piece(piece.name, transpose=piece.transpose):
                raise UnsupportedFormat(
                    f"{piece.name} holds experts in a form into which an adapter can't be merged; name the adapter in "
                    "requests instead.",
                    param=piece.name,
                )
            for expert in range(matrix.place.stored[0]):
                part = slice(number * rows, (number + 1) * rows)
                yield (
                    piece.name.replace("{e}", str(expert)),
                    _Expert(matrix, read, expert, part, is_transposed=piece.transpose),
                )

    def _bias_of(self, name: str) -> str:
        bias = name.removesuffix("weight") + "bias"
        if any(bias in source.tensor_names() for source in self._spec.parameters.values()):
            return bias
        raise UnsupportedFormat(
            f"the adapter has a bias for {name}, which has none in the base to merge it into; name the adapter in "
            "requests instead.",
            param=name,
        )

    def _check_tied(self, owner: str, name: str) -> None:
        if owner == "embed_tokens" and self._spec.tie_word_embeddings:
            raise UnsupportedFormat(
                f"the adapter changes {name}, but the base's head is its embedding, so that a merge would change both; "
                "name the adapter in requests instead.",
                param=name,
            )


def _read(path: Path, name: str) -> torch.Tensor:
    with TensorFiles([path], [[name]]) as files:
        files.move()
        return check_finite(name, files.read(name)).float().clone()


@dataclass(frozen=True, slots=True)
class _Replaced:
    """The adapter's tensor in the place of the base's."""

    name: str
    read: Read

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self.read(self.name).view_as(value)


@dataclass(frozen=True, slots=True)
class _Added:
    """A bias added to the base's."""

    name: str
    scale: float
    read: Read

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value + self.scale * self.read(self.name)


@dataclass(frozen=True, slots=True)
class _LowRank:
    """A module's ΔW in the orientation in which it is stored, with DoRA's magnitudes if it has them."""

    matrix: MatrixPlan
    read: Read

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix
        delta = matrix.scale * (self.read(matrix.b) @ self.read(matrix.a))
        changed: torch.Tensor = value + (delta.mT if matrix.is_swapped else delta)
        if matrix.magnitude is None:
            return changed
        axis = 0 if matrix.is_swapped else 1  # that of the inputs
        factor: torch.Tensor = self.read(matrix.magnitude).flatten() / torch.linalg.vector_norm(changed, dim=axis)
        return changed * factor.unsqueeze(axis)


def _stacks(matrix: MatrixPlan, read: Read) -> tuple[torch.Tensor, torch.Tensor]:
    """Left (E, rows, r) and right (E, r, columns) of a stack as it is stored."""
    a, b = read(matrix.a), read(matrix.b)
    rights = a.view(matrix.num_stacked, matrix.rank, -1)
    lefts = b.view(b.shape[0], matrix.rank, matrix.num_stacked).permute(2, 0, 1)
    return (rights.mT, lefts.mT) if matrix.has_swapped_factors else (lefts, rights)


@dataclass(frozen=True, slots=True)
class _Stack:
    """ΔW of all experts in one stored tensor."""

    matrix: MatrixPlan
    read: Read

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        left, right = _stacks(self.matrix, self.read)
        return value + self.matrix.scale * torch.bmm(left, right)[: len(value)]


@dataclass(frozen=True, slots=True)
class _Expert:
    """Rows of one expert's ΔW, for a stored tensor of its own."""

    matrix: MatrixPlan
    read: Read
    expert: int
    rows: slice
    is_transposed: bool

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        lefts, rights = _stacks(self.matrix, self.read)
        left, right = take_factors(self.matrix.place.piece, lefts[self.expert], rights[self.expert], None)
        delta = self.matrix.scale * (left[self.rows] @ right)
        return value + (delta.mT if self.is_transposed else delta)
