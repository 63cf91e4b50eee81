"""Weights in codes of 2 to 8 bits (``inference.modelling.quantisation.Form``), in plain PyTorch: the reference form.

``native.coded`` has the form that is multiplied without being expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.nn import functional

from inference.modelling.layers.code_search import find_codes, scales_dtype
from inference.modelling.layers.packed import Packed, PackedStack, PackedTable, PlainQuantised, quantise_plainly
from inference.modelling.quantisation import (
    FACTOR_INPUTS,
    FLOAT8_STEP,
    GROUP_SIZES,
    OWN_FORMS,
    PLANES,
    Form,
    FormName,
    code_bytes,
)

CHUNK_VALUES = 1 << 17
"""Values that are quantised at once: what the search makes on the way stays in a core's cache."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix (N, K), or a stack (E, N, K), in codes, before they are packed.

    Attributes:
        codes: (…, N, K) uint8, each below 2^bits.
        scales: (…, N, groups), exact in the form's dtype or to be rounded to it; of a form with factors whole numbers.
        offsets: (…, N, groups) likewise; None: the form has none.
        form: Meaning of the codes.
        order: (K,) int64, the input that each column belongs to; None: they are in order.
        factors: (…, N, ⌈K / ``FACTOR_INPUTS``⌉, 1 or 2) what scales, and offsets, are multiplied by; None: the form
            has none.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    form: Form
    order: torch.Tensor | None = None
    factors: torch.Tensor | None = None

    @property
    def flat(self) -> Codes:
        """The same as one matrix: those of a stack lie one below the other."""
        offsets = None if self.offsets is None else self.offsets.flatten(0, -2)
        factors = None if self.factors is None else self.factors.flatten(0, -3)
        return replace(
            self, codes=self.codes.flatten(0, -2), scales=self.scales.flatten(0, -2), offsets=offsets, factors=factors
        )

    def without_factors(self) -> Codes:
        """Return the same codes with scales and offsets that are multiplied out, in float32."""
        if self.factors is None:
            return self
        each = FACTOR_INPUTS // self.form.group
        repeated = self.factors.float().repeat_interleave(each, -2)[..., : self.scales.shape[-1], :]
        scales = self.scales.float() * repeated[..., 0]
        offsets = None if self.offsets is None else self.offsets.float() * repeated[..., 1]
        return replace(self, scales=scales, offsets=offsets, form=self.form.without_factors, factors=None)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the (…, N, K) values, computed in float32 and rounded once."""
        if self.factors is not None:
            return self.without_factors().dense(dtype)
        form, inputs = self.form, self.codes.shape[-1]
        if form.is_float:
            levels = self.codes.view(torch.float8_e4m3fn).float() * FLOAT8_STEP
        elif form.levels:
            levels = torch.tensor(form.levels, dtype=torch.float32, device=self.codes.device)[self.codes.int()]
        else:
            levels = self.codes.float() - form.zero
        padded = functional.pad(levels, (0, -inputs % form.group))
        values = padded.view(*self.scales.shape, form.group) * self.scales.float().unsqueeze(-1)
        if self.offsets is not None:
            values += self.offsets.float().unsqueeze(-1)
        return values.flatten(-2)[..., :inputs].to(dtype)


@dataclass(frozen=True, slots=True)
class PlainCoded:
    """Codes packed in rows, for products without kernels: less memory, dense products.

    Attributes:
        planes: (…, N, bytes) uint8, see ``pack_planes``.
        scales: (…, N, groups) of the form's dtype; int8 where it has factors.
        offsets: (…, N, groups) likewise; None: the form has none.
        form: Meaning of the codes.
        inputs: K.
        factors: (…, N, ⌈K / ``FACTOR_INPUTS``⌉, 1 or 2) float16; None: the form has none.
    """

    planes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    form: Form
    inputs: int
    factors: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Memory of codes, scales, offsets and factors."""
        parts = (self.planes, self.scales, self.offsets, self.factors)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def is_quantised(self) -> bool:
        """Whether values have fewer bits than a float."""
        return True

    def codes(self) -> Codes:
        """Return the codes, a byte each."""
        codes = unpack_planes(self.planes, self.form.bits, self.inputs)
        return Codes(codes, self.scales, self.offsets, self.form, factors=self.factors)

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        return functional.linear(hidden, self.dense(hidden.dtype), bias)

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same, turned to float32."""
        return self.linear(hidden, bias).float()

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(n,) int64 to (n, K)."""
        return self._select(ids).codes().dense(dtype)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """(…, N, K)."""
        return self.codes().dense(dtype)

    def matrix(self, number: int) -> PlainCoded:
        """Return one matrix of a stack."""
        return self._select(number)

    def _select(self, index: torch.Tensor | int) -> PlainCoded:
        offsets, factors = (None if part is None else part[index] for part in (self.offsets, self.factors))
        return PlainCoded(self.planes[index], self.scales[index], offsets, self.form, self.inputs, factors)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """A matrix whose rows are in several forms, one form below the other.

    Attributes:
        parts: Packed matrices of the same K.
        outputs: N of each.
    """

    parts: tuple[Packed, ...]
    outputs: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Memory of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def is_quantised(self) -> bool:
        """Whether a part has values of fewer bits than a float."""
        return any(part.is_quantised for part in self.parts)

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        biases = self._biases(bias)
        return torch.cat([part.linear(hidden, own) for part, own in zip(self.parts, biases, strict=True)], -1)

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same in float32."""
        biases = self._biases(bias)
        return torch.cat([part.wide_linear(hidden, own) for part, own in zip(self.parts, biases, strict=True)], -1)

    def _biases(self, bias: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        return [None] * len(self.parts) if bias is None else torch.split(bias, list(self.outputs))


@dataclass(frozen=True, slots=True)
class PermutedInputs:
    """A matrix whose columns were put in another order, so that those of a group are neighbours.

    Attributes:
        packed: The matrix.
        order: (K,) int64, the input that each column belongs to.
    """

    packed: Packed
    order: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Memory of both."""
        return self.packed.nbytes + self.order.nbytes

    @property
    def is_quantised(self) -> bool:
        """Whether values have fewer bits than a float."""
        return self.packed.is_quantised

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        return self.packed.linear(hidden.index_select(-1, self.order), bias)

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same in float32."""
        return self.packed.wide_linear(hidden.index_select(-1, self.order), bias)


class CodeStore(Protocol):
    """Memory of a matrix, or a stack, that takes its rows as they come.

    Attributes:
        packed: The result, once everything has come.
    """

    @property
    def packed(self) -> PackedTable | PackedStack: ...

    def put(self, rows: Codes, first: int) -> None:
        """Pack rows on this thread.

        Args:
            rows: Whole blocks of them (``BLOCK_ROWS``), or the last ones.
            first: The number of the first one; a stack's matrices lie one below the other.
        """
        ...


class PlainStore:
    """Rows of codes for products in plain PyTorch.

    Args:
        shape: Of the whole.
        form: What the codes mean.
        device: Where they go.
    """

    def __init__(self, shape: Sequence[int], form: Form, device: torch.device | str = "cpu") -> None:
        *outer, inputs = shape
        num_bytes = code_bytes(inputs, form.bits)
        groups, dtype = -(-inputs // form.group), torch.int8 if form.has_factors else scales_dtype(form)
        planes = torch.empty(*outer, num_bytes, dtype=torch.uint8, device=device)
        scales = torch.empty(*outer, groups, dtype=dtype, device=device)
        offsets = torch.empty_like(scales) if form.has_offset else None
        factors = None
        if form.has_factors:
            shape = (*outer, -(-inputs // FACTOR_INPUTS), form.num_scales)
            factors = torch.empty(shape, dtype=scales_dtype(form), device=device)
        self.packed = PlainCoded(planes, scales, offsets, form, inputs, factors)

    def put(self, rows: Codes, first: int) -> None:
        """Pack rows on this thread."""
        last, packed = first + len(rows.codes), self.packed
        if packed.factors is None:
            rows = rows.without_factors()
        assert (rows.factors is None) == (packed.factors is None), "rows without the factors that the form has"
        with torch.inference_mode():  # each of the readers' threads has a mode of its own
            packed.planes.flatten(0, -2)[first:last] = pack_planes(rows.codes, packed.form.bits)
            packed.scales.flatten(0, -2)[first:last] = rows.scales
            if packed.offsets is not None and rows.offsets is not None:
                packed.offsets.flatten(0, -2)[first:last] = rows.offsets
            if packed.factors is not None and rows.factors is not None:
                packed.factors.flatten(0, -3)[first:last] = rows.factors


class CodeSink:
    """Takes the rows of a parameter, which may be in several forms.

    Args:
        stores: Numbers of rows, and where they go, from the first row on. Those of a store have one order of inputs.
        device: Where the stores are.
    """

    def __init__(self, stores: Sequence[tuple[int, CodeStore]], device: torch.device | str = "cpu") -> None:
        self._rows = tuple(rows for rows, _ in stores)
        self._stores = tuple(store for _, store in stores)
        self._orders: dict[int, torch.Tensor] = {}
        self._device = device

    def take(self, rows: Codes, first: int) -> None:
        """Take rows of one form; called by several threads, in any order."""
        start = 0
        for number, (count, store) in enumerate(zip(self._rows, self._stores, strict=True)):
            if first < start + count:
                store.put(rows, first - start)
                if rows.order is not None:
                    self._orders[number] = rows.order
                return
            start += count
        raise AssertionError("rows behind the parameter's end")

    @property
    def packed(self) -> Packed:
        """The result, once everything has come."""
        parts = tuple(self._part(number) for number in range(len(self._stores)))
        return parts[0] if len(parts) == 1 else JoinedRows(parts, self._rows)

    def _part(self, number: int) -> Packed:
        packed, order = self._stores[number].packed, self._orders.get(number)
        return packed if order is None else PermutedInputs(packed, order.to(self._device))


def code_plainly(weight: Codes) -> PlainCoded:
    """Pack codes for products in plain PyTorch."""
    store = PlainStore(weight.codes.shape, weight.form, weight.codes.device)
    store.put(weight.flat, 0)
    return store.packed


def quantise_to_codes(weight: torch.Tensor, form: Form) -> Codes:
    """Quantise (…, N, K), in the codes and scales of the least squared error; the form has no offsets."""
    *outer, inputs = weight.shape
    step = max(1, CHUNK_VALUES // inputs)
    found = [find_codes(piece, form) for piece in torch.split(weight.flatten(0, -2), step)]
    codes, scales = (torch.cat(pieces).view(*outer, -1) for pieces in zip(*found, strict=True))
    return Codes(codes, scales, None, form)


def rounded_to_form(weight: torch.Tensor, form: Form) -> torch.Tensor:
    """Return the values that (…, N, K) has in a form without offsets, without all of its codes in memory."""
    values = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    step = max(1, CHUNK_VALUES // weight.shape[-1])
    for piece, target in zip(*(torch.split(part.flatten(0, -2), step) for part in (weight, values)), strict=True):
        target.copy_(quantise_to_codes(piece, form).dense(weight.dtype))
    return values


def quantised_rows(weight: torch.Tensor, name: FormName) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise (…, N, K) to rows as ``blazr quantise`` writes them.

    Returns:
        Codes (…, N, bytes), int8 for the form int8, else uint8 as ``pack_planes`` gives them; and scales (…, N, groups)
        bfloat16.
    """
    if name in GROUP_SIZES:
        plain = quantise_plainly(weight, name)
        return plain.values, plain.scales
    packed = code_plainly(quantise_to_codes(weight, OWN_FORMS[name]))
    return packed.planes, packed.scales


def packed_rows(codes: torch.Tensor, scales: torch.Tensor, name: FormName, inputs: int) -> PlainQuantised | PlainCoded:
    """Return what rows of ``quantised_rows`` hold; ``inputs``: K."""
    if name in GROUP_SIZES:
        return PlainQuantised(codes, scales, name, inputs)
    return PlainCoded(codes, scales, None, OWN_FORMS[name], inputs)


def pack_planes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """(…, K) uint8 codes to bytes: of all codes the lowest field of ``PLANES``, then the next one.

    A byte holds neighbours, the first one in its lowest bits.
    """
    planes, shift = [], 0
    for width in PLANES[bits]:
        per_byte = 8 // width
        fields = functional.pad((codes >> shift) & ((1 << width) - 1), (0, -codes.shape[-1] % per_byte))
        packed = torch.zeros_like(fields[..., ::per_byte])
        for place in range(per_byte):
            packed |= fields[..., place::per_byte] << (place * width)
        planes.append(packed)
        shift += width
    return torch.cat(planes, -1)


def unpack_planes(planes: torch.Tensor, bits: int, inputs: int) -> torch.Tensor:
    """Undo ``pack_planes``: (…, bytes) to (…, ``inputs``) uint8."""
    codes, shift, begin = torch.zeros(*planes.shape[:-1], inputs, dtype=torch.uint8, device=planes.device), 0, 0
    for width in PLANES[bits]:
        end = begin + -(-inputs * width // 8)
        shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=planes.device)
        fields = (planes[..., begin:end].unsqueeze(-1) >> shifts) & ((1 << width) - 1)
        codes |= fields.flatten(-2)[..., :inputs] << shift
        begin, shift = end, shift + width
    return codes
