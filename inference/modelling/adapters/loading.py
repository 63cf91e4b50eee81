"""Read an adapter's tensors and bring them into the form in which a network's modules add them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from inference.errors import UnsupportedFormat
from inference.modelling.adapters.deltas import ModuleDelta, Term
from inference.modelling.adapters.factors import check_finite, matrix_factors
from inference.modelling.adapters.scaling_classifier import ScalingClassifier
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.mamba1 import StepProjection
from inference.modelling.layers.mla import HeadExpansion, MultiHeadLatentAttention
from inference.modelling.layers.moe import Experts, Router
from inference.modelling.lora.modules import TABLES
from inference.modelling.lora.plan import AdapterPlan, MatrixPlan, WholePlan
from inference.modelling.mapped import mapped_zeros
from inference.modelling.weights.files import TensorFiles
from inference.modelling.weights.piece_rows import take_rows

EYE_ROWS = 256
"""Inputs of which the columns of a packed matrix are read at once."""
TABLE_ROWS = 2048
"""Rows of a table that are read at once."""
ALIGNMENT = 64
"""Bytes at whose multiples a factor begins: those of a line of the cache."""
HEAD_ROLE = "#head"
"""Behind the name of a tied embedding: its product with the hidden rows is meant."""

Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter in memory.

    Attributes:
        deltas: By our module's name.
        is_eager: It changes something that recorded steps don't have.
        num_bytes: Memory of all of it.
        classifier: What scales the adapters of an X-LoRA; None: it is a LoRA adapter.
    """

    deltas: dict[str, ModuleDelta]
    is_eager: bool
    num_bytes: int
    classifier: ScalingClassifier | None = None


def load_adapter(plan: AdapterPlan, path: Path, network: nn.Module) -> LoadedAdapter:
    """Read an adapter for a network.

    Args:
        plan: Checked against the network's spec.
        path: The safetensors file.
        network: The base, loaded.

    Raises:
        CheckpointError: The file is broken, or has values that are no numbers.
        UnsupportedFormat: The adapter changes a module of a kind that isn't adapted per request.
    """
    names = dict.fromkeys(_names(plan))
    with TensorFiles([path], [list(names)]) as files, torch.inference_mode():
        files.move()
        deltas = _Builder(network, lambda name: check_finite(name, files.read(name))).build(plan)
        if next(network.parameters()).device.type == "cpu":
            _move_together(deltas)
    is_eager = any(_is_eager(name, delta) for name, delta in deltas.items())
    return LoadedAdapter(deltas, is_eager, sum(delta.nbytes for delta in deltas.values()))


def _names(plan: AdapterPlan) -> Iterator[str]:
    for matrix in plan.matrices:
        yield from (name for name in (matrix.a, matrix.b, matrix.magnitude, matrix.lora_bias) if name is not None)
        yield from (name for twin in matrix.twins for name in twin if name is not None)
    yield from (whole.name for whole in (*plan.biases, *plan.wholes))


def _is_eager(name: str, delta: ModuleDelta) -> bool:
    is_table = name in TABLES
    return bool(delta.experts) or delta.whole is not None or delta.matrix is not None or is_table


def _move_together(deltas: dict[str, ModuleDelta]) -> None:
    """Put all factors into one piece of memory, whose huge pages are read faster than small ones."""
    terms = [found for delta in deltas.values() for found in (delta.terms, *delta.experts.values())]
    parts = [part for found in terms for term in found for part in (term.a, term.b)]
    if not parts:
        return
    memory = mapped_zeros((sum(map(_aligned_bytes, parts)),), torch.uint8)
    position = 0

    def moved(part: torch.Tensor) -> torch.Tensor:
        nonlocal position
        target = memory[position : position + part.nbytes].view(part.dtype).view(part.shape)
        position += _aligned_bytes(part)
        return target.copy_(part)

    for found in terms:
        found[:] = [replace(term, a=moved(term.a), b=moved(term.b)) for term in found]


def _aligned_bytes(part: torch.Tensor) -> int:
    return -(-part.nbytes // ALIGNMENT) * ALIGNMENT


class _Builder:
    """Makes the deltas of one adapter.

    Args:
        network: The base.
        read: Reads a tensor of the adapter.
    """

    def __init__(self, network: nn.Module, read: Read) -> None:
        self._network, self._read = network, read
        weight = next(network.parameters())
        self._device, self._dtype = weight.device, weight.dtype
        self._deltas: dict[str, ModuleDelta] = defaultdict(ModuleDelta)

    def build(self, plan: AdapterPlan) -> dict[str, ModuleDelta]:
        """All deltas by module."""
        for whole in plan.wholes:
            self._add_whole(whole)
        for bias in plan.biases:
            self._add_bias(bias)
        by_owner: dict[str, list[MatrixPlan]] = defaultdict(list)
        for matrix in plan.matrices:
            self._check_twins(matrix)
            by_owner[matrix.place.owner + (HEAD_ROLE if matrix.place.is_head else "")].append(matrix)
        for owner, matrices in by_owner.items():
            self._add_matrices(owner, matrices)
        return dict(self._deltas)

    def _check_twins(self, matrix: MatrixPlan) -> None:
        """Refuse other changes of a module that several layers share."""
        for twin in matrix.twins:
            for name, other in zip((matrix.a, matrix.b, matrix.magnitude), twin, strict=True):
                if name is not None and (other is None or not torch.equal(self._read(name), self._read(other))):
                    raise UnsupportedFormat(
                        f"{name} and {other} of the adapter differ, but the layers share that module; merge the "
                        "adapter into its base with PEFT (merge_and_unload), which keeps the layers apart.",
                        param=name,
                    )

    def _module(self, owner: str) -> nn.Module:
        return self._network.get_submodule(owner.removesuffix(HEAD_ROLE))

    def _add_matrices(self, owner: str, matrices: list[MatrixPlan]) -> None:
        module, delta = self._module(owner), self._deltas[owner]
        check_module(module, matrices[0].module)
        changes: list[tuple[MatrixPlan, torch.Tensor, torch.Tensor]] = []
        for matrix in matrices:
            a, b = self._read(matrix.a).float(), self._read(matrix.b).float()
            for expert, (left, right) in matrix_factors(matrix, a, b):
                if expert is not None:
                    term = self._term(matrix, left, right)
                    delta.experts.setdefault((matrix.place.leaf, expert), []).append(term)
                else:
                    changes.append((matrix, left, right))
            if matrix.lora_bias is not None:
                offset = take_rows(matrix.place.piece, self._read(matrix.lora_bias).float()) * matrix.scale
                self._rows_of(delta, "offset", module)[self._span(matrix)] += offset.to(self._device)
        if isinstance(module, HeadExpansion):
            self._check_expansion(owner, matrices[0].module)
            delta.matrix = self._changed_matrix(module, changes)
            return
        gains = self._gains(module, owner, changes)
        for matrix, left, right in changes:
            if matrix.magnitude is not None and not self._is_table(module, owner):
                span, factor = self._span(matrix), gains[matrix.module]
                self._rows_of(delta, "gain", module)[span] = factor - 1
                left = left * factor.cpu().unsqueeze(1)
            elif matrix.magnitude is not None:
                delta.gain = gains[matrix.module] - 1
                right = right * gains[matrix.module].cpu()
            delta.terms.append(self._term(matrix, left, right))

    def _check_expansion(self, owner: str, name: str) -> None:
        layer = self._network.get_submodule(owner.rpartition(".")[0])
        if isinstance(layer, MultiHeadLatentAttention) and not layer.is_plain:
            raise _unsupported(name, layer)

    def _term(self, matrix: MatrixPlan, left: torch.Tensor, right: torch.Tensor) -> Term:
        # Copies of their own: the file's buffer holds all tensors.
        a, b = (part.to(self._device, self._dtype, copy=True).contiguous() for part in (right, left.mT))
        return Term(a, b, matrix.place.first_row, matrix.scale, matrix.scaling)

    def _span(self, matrix: MatrixPlan) -> slice:
        return slice(matrix.place.first_row, matrix.place.first_row + matrix.place.num_rows)

    def _rows_of(self, delta: ModuleDelta, name: str, module: nn.Module) -> torch.Tensor:
        """The module's gain or offset, zero where nothing was said yet."""
        found: torch.Tensor | None = getattr(delta, name)
        if found is None:
            found = torch.zeros(_num_outputs(module), dtype=torch.float32, device=self._device)
            setattr(delta, name, found)
        return found

    def _is_table(self, module: nn.Module, owner: str) -> bool:
        return isinstance(module, Embedding) and not owner.endswith(HEAD_ROLE)

    def _gains(
        self, module: nn.Module, owner: str, changes: list[tuple[MatrixPlan, torch.Tensor, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """DoRA's magnitudes over the lengths of the changed rows, by adapter module; see section 4 of the paper."""
        found = [change for change in changes if change[0].magnitude is not None]
        if not found:
            return {}
        squares = {matrix.module: torch.zeros((), device=self._device) for matrix, _, _ in found}
        is_table = self._is_table(module, owner)
        for begin, values in _weight_parts(module, is_table=is_table):
            for matrix, left, right in found:
                if is_table:  # rows (v, h) of the table; a column has one length
                    part = left[begin : begin + len(values)].to(self._device) @ right.to(self._device)
                    changed, axis = values + matrix.scale * part, 0
                else:  # columns (outputs, k) of the matrix
                    part = left.to(self._device) @ right[:, begin : begin + values.shape[1]].to(self._device)
                    changed, axis = values[self._span(matrix)] + matrix.scale * part, 1
                squares[matrix.module] = squares[matrix.module] + changed.square().sum(axis)
        gains = {}
        for matrix, _, _ in found:
            assert matrix.magnitude is not None
            magnitude = self._read(matrix.magnitude).float().flatten().to(self._device)
            rows = magnitude if is_table else take_rows(matrix.place.piece, magnitude)
            gains[matrix.module] = rows / squares[matrix.module].sqrt()
        return gains

    def _changed_matrix(
        self, module: HeadExpansion, changes: list[tuple[MatrixPlan, torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        weight = module.weight.detach().to(torch.float32, copy=True)
        for matrix, left, right in changes:
            span = self._span(matrix)
            changed = weight[span] + matrix.scale * (left.to(self._device) @ right.to(self._device))
            if matrix.magnitude is not None:
                magnitude = take_rows(matrix.place.piece, self._read(matrix.magnitude).float().flatten())
                changed *= (magnitude.to(self._device) / changed.norm(dim=1)).unsqueeze(1)
            weight[span] = changed
        return weight.to(module.weight.dtype)

    def _add_whole(self, whole: WholePlan) -> None:
        place = whole.place
        owner = place.owner + (HEAD_ROLE if place.is_head else "")
        module = self._module(owner)
        if (
            not isinstance(module, Linear | Embedding)
            or place.leaf != "weight"
            or place.num_rows != _num_outputs(module)
        ):
            raise _unsupported(whole.name, module)
        value = self._read(whole.name).to(self._device, self._dtype)
        if not _equals(module, value):
            self._deltas[owner].whole = value.clone()

    def _add_bias(self, bias: WholePlan) -> None:
        place = bias.place
        module = self._module(place.owner)
        ours = getattr(module, "bias", None)
        if not isinstance(module, Linear | StepProjection) or ours is None:
            if ours is not None and torch.equal(ours.float().cpu(), self._read(bias.name).float()):
                return
            raise _unsupported(bias.name, module)
        span = slice(place.first_row, place.first_row + place.num_rows)
        values = take_rows(place.piece, self._read(bias.name).float()).to(self._device)
        if not torch.equal(values.to(ours.dtype), ours[span]):  # PEFT saves biases that were not trained, too
            self._rows_of(self._deltas[place.owner], "offset", module)[span] = values - ours[span].float()


def check_module(module: nn.Module, name: str) -> None:
    """Refuse a module whose product can't be changed per row.

    Raises:
        UnsupportedFormat: It can't.
    """
    is_whole = not isinstance(module, StepProjection) or module.num_heads == 1
    if not isinstance(module, Linear | Embedding | Experts | Router | StepProjection | HeadExpansion) or not is_whole:
        raise _unsupported(name, module)


def _unsupported(name: str, module: nn.Module) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"the adapter changes {name[:200]}, a part of {type(module).__name__} that can't be changed per request; merge "
        "the adapter into its base (blazr merge) and serve the result.",
        param=name[:200],
    )


def _num_outputs(module: nn.Module) -> int:
    if isinstance(module, Linear | Embedding):
        return module.out_features
    return cast("torch.Tensor", module.weight).shape[0]


def _weight_parts(module: nn.Module, *, is_table: bool) -> Iterator[tuple[int, torch.Tensor]]:
    """A module's matrix piece by piece in float32: rows of a table, or columns of a matrix; each with its first number.

    A packed matrix is read by what it does to unit vectors, whatever its form is.
    """
    weight = cast("torch.Tensor", module.weight)
    if is_table:
        assert isinstance(module, Embedding)
        for begin in range(0, module.out_features, TABLE_ROWS):
            ids = torch.arange(begin, min(begin + TABLE_ROWS, module.out_features), device=weight.device)
            yield begin, Embedding.forward(module, ids).float()
        return
    if not isinstance(module, Linear | Embedding) or module.packed is None:
        yield 0, weight.float()
        return
    inputs = module.in_features
    for begin in range(0, inputs, EYE_ROWS):
        stop = min(begin + EYE_ROWS, inputs)
        eye = torch.zeros(stop - begin, inputs, dtype=weight.dtype, device=weight.device)
        eye[:, begin:stop].fill_diagonal_(1)
        yield begin, module.packed.wide_linear(eye, None).mT


def _equals(module: Linear | Embedding, value: torch.Tensor) -> bool:
    """Whether a module has this matrix already: PEFT saves tables that were not trained, too."""
    if tuple(value.shape) != (module.out_features, module.in_features):
        return False
    is_table = isinstance(module, Embedding)
    for begin, part in _weight_parts(module, is_table=is_table):
        size = part.shape[0] if is_table else part.shape[1]
        if not torch.equal(part, value.float().narrow(0 if is_table else 1, begin, size)):
            return False
    return True
