"""Weights in another form than a dense matrix: what a layer asks of them, and the quantised form in plain PyTorch.

The backends have further forms: ``inference.modelling.backends.plain``, ``native.packing``, ``triton.quantised``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.code_search import find_codes, in_groups, inverse
from inference.modelling.quantisation import GROUP_SIZES, INT4_LEVELS, OWN_FORMS, Kind

_BITS = 32
"""Outputs that share a number in ``output_bits``."""
_TINY = 1e-30


class Packed(Protocol):
    """A weight (N, K)."""

    @property
    def nbytes(self) -> int:
        """Memory."""
        ...

    @property
    def is_quantised(self) -> bool:
        """Whether values were rounded to fewer bits."""
        ...

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        ...

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same in float32."""
        ...


class PackedTable(Packed, Protocol):
    """A weight that also returns single rows, for an embedding."""

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(n,) int64 to (n, K)."""
        ...


class PackedHead(Packed, Protocol):
    """A weight that also finds each row's greatest output, for a language model's head."""

    def argmax(
        self, hidden: torch.Tensor, bias: torch.Tensor | None, masked: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(n, K) to each row's position and value; ``masked``: ``output_bits`` of outputs to leave out."""
        ...


class PackedStack(Packed, Protocol):
    """A stack of weights (E, N, K), for routed experts."""

    def matrix(self, number: int) -> Packed:
        """One weight (N, K) of the stack."""
        ...


@runtime_checkable
class Packable(Protocol):
    """A layer whose matrices may be replaced by packed ones."""

    def plain_matrices(self) -> Mapping[str, torch.Tensor]:
        """Matrices that can be packed, by parameter name."""
        ...

    def accept(self, leaf: str, packed: Packed, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """Replace parameter ``leaf`` by its packed form, to compute in ``dtype``; the parameter is empty afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class PlainQuantised:
    """Quantised values in rows, where no kernels are: memory is saved, products are dense. The reference of the others.

    Attributes:
        values: (…, N, K) int8; for int4 (…, N, K/2 rounded up) uint8, a nibble the number of a level
            (``INT4_LEVELS``), those of the even inputs the low ones.
        scales: (…, N, groups) bfloat16.
        kind: ``int8`` or ``int4``.
        inputs: K.
    """

    values: torch.Tensor
    scales: torch.Tensor
    kind: Kind
    inputs: int

    @property
    def nbytes(self) -> int:
        """Memory of values and scales."""
        return self.values.nbytes + self.scales.nbytes

    @property
    def is_quantised(self) -> bool:
        """Whether values were rounded to fewer bits."""
        return True

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        return functional.linear(hidden, self.dense(hidden.dtype), bias)

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same, turned to float32."""
        return self.linear(hidden, bias).float()

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(n,) int64 to (n, K)."""
        return self._dense(self.values[ids], self.scales[ids], dtype)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """(…, N, K)."""
        return self._dense(self.values, self.scales, dtype)

    def matrix(self, number: int) -> PlainQuantised:
        """One matrix of a stack."""
        return PlainQuantised(self.values[number], self.scales[number], self.kind, self.inputs)

    def to(self, device: torch.device | str) -> PlainQuantised:
        """The same on a device."""
        return PlainQuantised(self.values.to(device), self.scales.to(device), self.kind, self.inputs)

    def _dense(self, values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.kind == "int4":
            numbers = torch.stack((values & 15, values >> 4), -1).flatten(-2)[..., : self.inputs]
            values = torch.tensor(INT4_LEVELS, dtype=torch.int8, device=values.device)[numbers.int()]
        expanded = scales.float().repeat_interleave(GROUP_SIZES[self.kind], -1)[..., : self.inputs]
        return (values.float() * expanded).to(dtype)


def empty_parameter(dtype: torch.dtype, device: torch.device | str) -> nn.Parameter:
    """What stands in a layer for a parameter that was packed."""
    return nn.Parameter(torch.empty(0, dtype=dtype, device=device), requires_grad=False)


def output_bits(ids: Sequence[int], outputs: int) -> torch.Tensor | None:
    """A set of outputs, a bit for each and 32 of them to a number, (blocks,) int32; None: the empty set."""
    if not ids:
        return None
    bits = np.zeros(-(-outputs // _BITS) * _BITS, dtype=np.bool_)
    bits[list(ids)] = True
    return torch.from_numpy(np.packbits(bits, bitorder="little").view("<i4").astype(np.int32))


def quantise_plainly(weight: torch.Tensor, kind: Kind) -> PlainQuantised:
    """The same values and scales as the native packing gives, in PyTorch."""
    inputs = weight.shape[-1]
    if kind == "int8":
        grouped = in_groups(weight, GROUP_SIZES[kind])
        scales = _scales_int8(grouped)
        values = (grouped * inverse(scales)).clamp_(-127, 127).round_().flatten(-2)[..., :inputs]
        return PlainQuantised(values.to(torch.int8), scales, kind, inputs)
    numbers, scales = find_codes(weight, OWN_FORMS[kind])
    nibbles = functional.pad(numbers, (0, inputs % 2))
    return PlainQuantised(nibbles[..., ::2] | nibbles[..., 1::2] << 4, scales, kind, inputs)


def _scales_int8(grouped: torch.Tensor) -> torch.Tensor:
    """(…, groups) bfloat16: greatest magnitude / 127, rounded up so that no value is cut off."""
    row_max = grouped.abs().amax(-1)
    exact = row_max / torch.full_like(row_max, 127.0)
    near = exact.bfloat16()
    above = (near.view(torch.int16) + 1).view(torch.bfloat16)
    return torch.where(row_max < _TINY, 0.0, torch.where(near.float() < exact, above, near).float()).bfloat16()
