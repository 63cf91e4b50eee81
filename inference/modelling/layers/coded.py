"""Weights in codes of 2 to 8 bits (``inference.modelling.quantisation.Form``), in plain PyTorch: the reference form.

``native.coded`` has the form that is multiplied without being expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from inference.modelling.layers.packed import PackedTable
from inference.modelling.quantisation import PLANES, Form


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix (N, K), or a stack (E, N, K), in codes, before they are packed.

    Attributes:
        codes: (…, N, K) uint8, each below 2^bits.
        scales: (…, N, groups), exact in the form's dtype or to be rounded to it.
        offsets: (…, N, groups) likewise; None: the form has none.
        form: Meaning of the codes.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    form: Form

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the (…, N, K) values, computed in float32 and rounded once."""
        form, inputs = self.form, self.codes.shape[-1]
        if form.levels:
            levels = torch.tensor(form.levels, dtype=torch.float32, device=self.codes.device)[self.codes.int()]
        else:
            levels = self.codes.float() - form.zero
        values = levels * _expand(self.scales, form, inputs)
        if self.offsets is not None:
            values += _expand(self.offsets, form, inputs)
        return values.to(dtype)


@dataclass(frozen=True, slots=True)
class PlainCoded:
    """Codes packed in rows, for products without kernels: less memory, dense products.

    Attributes:
        planes: (…, N, bytes) uint8, see ``pack_planes``.
        scales: (…, N, groups) of the form's dtype.
        offsets: (…, N, groups) likewise; None: the form has none.
        form: Meaning of the codes.
        inputs: K.
    """

    planes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    form: Form
    inputs: int

    @property
    def nbytes(self) -> int:
        """Memory of codes, scales and offsets."""
        return self.planes.nbytes + self.scales.nbytes + (0 if self.offsets is None else self.offsets.nbytes)

    @property
    def is_quantised(self) -> bool:
        """Whether values have fewer bits than a float."""
        return True

    def codes(self) -> Codes:
        """Return the codes, a byte each."""
        return Codes(unpack_planes(self.planes, self.form.bits, self.inputs), self.scales, self.offsets, self.form)

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
        offsets = None if self.offsets is None else self.offsets[index]
        return PlainCoded(self.planes[index], self.scales[index], offsets, self.form, self.inputs)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """A matrix whose rows are in several forms, one form below the other.

    Attributes:
        parts: Packed matrices of the same K.
        outputs: N of each.
    """

    parts: tuple[PackedTable, ...]
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


def code_plainly(weight: Codes) -> PlainCoded:
    """Pack codes for products in plain PyTorch."""
    form, dtype = weight.form, scales_dtype(weight.form)
    offsets = None if weight.offsets is None else weight.offsets.to(dtype)
    planes = pack_planes(weight.codes, form.bits)
    return PlainCoded(planes, weight.scales.to(dtype), offsets, form, weight.codes.shape[-1])


def scales_dtype(form: Form) -> torch.dtype:
    """Return the dtype of a form's scales and offsets."""
    return torch.float16 if form.scales == "float16" else torch.bfloat16


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


def _expand(values: torch.Tensor, form: Form, inputs: int) -> torch.Tensor:
    """(…, groups) to (…, K) float32: each group's number for all of its inputs."""
    return values.float().repeat_interleave(form.group, -1)[..., :inputs]
