"""Matrices in the forms that products want them in: native blocks, oneDNN's layout, what a device's kernels read, or
plain quantised values.

Each form offers the same two things, a product with rows and (where an embedding needs it) single rows back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch.nn import functional

from inference.modelling.backends.backend import use_triton
from inference.modelling.backends.native import library
from inference.modelling.quantisation import GROUP_SIZES, Kind

if TYPE_CHECKING:
    from inference.modelling.backends.triton.quantised import DeviceQuantised

_FORMATS = {"int8": 0, "int4": 1, "bfloat16": 2, "float32": 3}
"""The numbers that ``inference/modelling/backends/native/src/gemm_layout.h`` gives its layouts."""
NATIVE_DTYPES = (torch.float32, torch.bfloat16)
"""What the native products compute in."""
BLOCK_ROWS = 32
"""Outputs that lie together in the native layouts."""
PIECE_BYTES = 4 << 20
"""Of stored rows that are packed at once: the disk is asked seldom enough (docs/performance.md)."""
_PACKING_BATCH_HINT = 8
"""oneDNN lays the weight out for about this many rows; 1 to 512 made no difference where it was measured."""
_TINY = 1e-30


class Packed(Protocol):
    """A weight (N, K)."""

    @property
    def nbytes(self) -> int:
        """Memory."""
        ...

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        ...

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same in float32."""
        ...


class RowSource(Packed, Protocol):
    """One that can also give rows back."""

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(n,) int64 to (n, K)."""
        ...


@dataclass(frozen=True, slots=True)
class NativePacked:
    """The layout of the native kernels; also a stack of matrices, which only ``inference.modelling.layers.moe`` uses.

    Attributes:
        data: (…, blocks, bytes) uint8.
        scales: (…, blocks, groups, 32) bfloat16; empty for what isn't quantised.
        format: A number of ``_FORMATS``.
        outputs, inputs: N and K.
        group: Inputs that share a scale.
    """

    data: torch.Tensor
    scales: torch.Tensor
    format: int
    outputs: int
    inputs: int
    group: int

    @property
    def nbytes(self) -> int:
        """Memory of values and scales."""
        return self.data.nbytes + self.scales.nbytes

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N), of the rows' dtype: float32 or bfloat16, and the weights' own if they aren't quantised."""
        product: torch.Tensor = torch.ops.blazr.packed_linear.default(
            hidden, self.data, self.scales, bias, self.format, self.outputs, self.group
        )
        return product

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same in float32: the sums as they are, not rounded on the way."""
        product: torch.Tensor = torch.ops.blazr.packed_linear.default(
            hidden, self.data, self.scales, bias, self.format, self.outputs, self.group, True
        )
        return product

    def greatest(
        self, hidden: torch.Tensor, bias: torch.Tensor | None, masked: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The greatest of each row's outputs as ``wide_linear`` has them, which are never all in memory.

        Args:
            hidden: (n, K).
            masked: ``output_bits`` of those that don't count.

        Returns:
            (n,) int64 where it is, the first among equals, and (n,) float32 the value. NaN is the greatest, at 0.
        """
        places, values = torch.ops.blazr.packed_greatest.default(
            hidden, self.data, self.scales, bias, self.format, self.outputs, self.group, masked
        )
        return places, values

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(n,) int64 to (n, K)."""
        found: torch.Tensor = torch.ops.blazr.packed_rows.default(
            self.data, self.scales, ids, self.format, self.outputs, self.inputs, self.group, dtype
        )
        return found

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """(N, K), for tests and references."""
        return self.rows(torch.arange(self.outputs), dtype)

    def matrix(self, number: int) -> NativePacked:
        """One matrix of a stack."""
        return NativePacked(self.data[number], self.scales[number], self.format, self.outputs, self.inputs, self.group)


@dataclass(frozen=True, slots=True)
class OneDnnPacked:
    """oneDNN's bfloat16 layout."""

    data: torch.Tensor
    outputs: int
    nbytes: int

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N)."""
        if hidden.numel() == 0:
            return hidden.new_empty(*hidden.shape[:-1], self.outputs)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(hidden, self.data, bias, "none", [], "")
        return product

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same, turned to float32."""
        return self.linear(hidden, bias).float()


@dataclass(frozen=True, slots=True)
class PlainQuantised:
    """Quantised values in rows, where no kernels are: memory is saved, products are dense. The reference of the others.

    Attributes:
        values: (…, N, K) int8; for int4 (…, N, K/2 rounded up) uint8 with the even inputs in the low nibbles, offset 8.
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

    def _dense(self, values: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.kind == "int4":
            values = torch.stack((values & 15, values >> 4), -1).flatten(-2)[..., : self.inputs].to(torch.int8) - 8
        spread = scales.float().repeat_interleave(GROUP_SIZES[self.kind], -1)[..., : self.inputs]
        return (values.float() * spread).to(dtype)


def output_bits(ids: Sequence[int], outputs: int) -> torch.Tensor | None:
    """A set of outputs, a bit for each and 32 of them to a number, (blocks,) int32; None: the empty set."""
    if not ids:
        return None
    bits = np.zeros(-(-outputs // BLOCK_ROWS) * BLOCK_ROWS, dtype=np.bool_)
    bits[list(ids)] = True
    return torch.from_numpy(np.packbits(bits, bitorder="little").view("<i4").astype(np.int32))


def quantise(
    weight: torch.Tensor, kind: Kind, *, dtype: torch.dtype
) -> NativePacked | PlainQuantised | DeviceQuantised:
    """Quantise (N, K), or a stack (E, N, K), in the best form that this device has for rows of ``dtype``.

    Args:
        weight: float32 or bfloat16.
        kind: How.
        dtype: What the network computes in.
    """
    if use_triton(weight):
        from inference.modelling.backends.triton.quantised import quantise_for_device

        return quantise_for_device(weight, kind)
    if weight.device.type == "cpu" and dtype in NATIVE_DTYPES and library.is_available():
        return pack_native(weight, kind)
    return quantise_plainly(weight, kind)


def pack_native(weight: torch.Tensor, form: str) -> NativePacked:
    """Into the native layout ``form`` (a name of ``_FORMATS``)."""
    group = GROUP_SIZES.get(form, 0)  # type: ignore[call-overload]
    data, scales = torch.ops.blazr.pack_weight.default(weight.contiguous(), _FORMATS[form], group)
    return NativePacked(data, scales, _FORMATS[form], weight.shape[-2], weight.shape[-1], group)


def native_form(dtype: torch.dtype) -> str:
    """The layout for weights as they are."""
    return str(dtype).removeprefix("torch.")


class PackedRows:
    """A matrix (N, K), or a stack (E, N, K), that comes in pieces and is packed, by several threads at once.

    Args:
        shape: Of the whole.
        form: A name of ``_FORMATS``.
        stored: dtype of the pieces: bfloat16 or float32, and that of ``form`` if it quantises nothing.

    Attributes:
        packed: The result, once everything has come.
    """

    def __init__(self, shape: Sequence[int], form: str, stored: torch.dtype) -> None:
        group = GROUP_SIZES.get(form, 0)  # type: ignore[call-overload]
        data, scales = torch.ops.blazr.empty_packed.default(list(shape), _FORMATS[form], group)
        self.packed = NativePacked(data, scales, _FORMATS[form], shape[-2], shape[-1], group)
        self._stored = stored
        self._row_bytes = shape[-1] * stored.itemsize

    @property
    def piece_bytes(self) -> int:
        """What a piece should have: whole blocks of outputs."""
        block = BLOCK_ROWS * self._row_bytes
        return max(1, PIECE_BYTES // block) * block

    def take(self, values: torch.Tensor, begin: int) -> None:
        """Pack rows on this thread.

        Args:
            values: Their bytes, (n,) uint8.
            begin: Where they begin: at a multiple of ``BLOCK_ROWS`` rows.
        """
        rows = values.view(self._stored).view(-1, self.packed.inputs)
        packed = self.packed
        torch.ops.blazr.pack_rows.default(
            rows, packed.data, packed.scales, begin // self._row_bytes, packed.format, packed.group
        )


def can_stream(shape: Sequence[int], parts: Sequence[Sequence[int]]) -> bool:
    """Whether a matrix or stack can be packed as its rows come.

    Args:
        shape: Of the whole.
        parts: Shapes of what comes, one below the other.
    """
    if len(shape) == 3 and shape[1] % BLOCK_ROWS:
        return False
    rows = [math.prod(part[:-1]) for part in parts]
    return all(part[-1] == shape[-1] for part in parts) and not any(count % BLOCK_ROWS for count in rows[:-1])


def pack_onednn(weight: torch.Tensor) -> OneDnnPacked:
    """Into oneDNN's layout."""
    data = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKING_BATCH_HINT)
    return OneDnnPacked(data, weight.shape[0], weight.nbytes)


def quantise_plainly(weight: torch.Tensor, kind: Kind) -> PlainQuantised:
    """The same values and scales as the native packing gives, in PyTorch."""
    group, inputs = GROUP_SIZES[kind], weight.shape[-1]
    groups = -(-inputs // group)
    padded = functional.pad(weight.float(), (0, groups * group - inputs))
    grouped = padded.view(*weight.shape[:-1], groups, group)
    scales = _scales_int8(grouped) if kind == "int8" else _scales_int4(grouped)
    low, high = (-127, 127) if kind == "int8" else (-8, 7)
    values = _whole(grouped, scales.float(), low, high).flatten(-2)[..., :inputs]
    if kind == "int8":
        return PlainQuantised(values.to(torch.int8), scales, kind, inputs)
    nibbles = functional.pad(values + 8, (0, inputs % 2)).to(torch.uint8)
    return PlainQuantised(nibbles[..., ::2] | nibbles[..., 1::2] << 4, scales, kind, inputs)


def _whole(grouped: torch.Tensor, scales: torch.Tensor, low: int, high: int) -> torch.Tensor:
    inverse = torch.where(scales == 0, 0.0, torch.ones_like(scales) / scales).unsqueeze(-1)
    return (grouped * inverse).clamp_(low, high).round_()


def _scales_int8(grouped: torch.Tensor) -> torch.Tensor:
    """(…, groups) bfloat16: greatest magnitude / 127, rounded up so that no value is cut off."""
    greatest = grouped.abs().amax(-1)
    exact = greatest / torch.full_like(greatest, 127.0)
    near = exact.bfloat16()
    above = (near.view(torch.int16) + 1).view(torch.bfloat16)
    return torch.where(greatest < _TINY, 0.0, torch.where(near.float() < exact, above, near).float()).bfloat16()


def _scales_int4(grouped: torch.Tensor) -> torch.Tensor:
    """(…, groups) bfloat16: of some that put the greatest magnitude at or a little beyond an end, the least error."""
    greatest = grouped.abs().amax(-1)
    best = torch.zeros_like(greatest, dtype=torch.bfloat16)
    best_error = torch.full_like(greatest, torch.inf)
    for end in (-8.0, 8.0, -7.0, -7.5, 7.5, -8.5, 8.5, -9.0, 9.0):
        scale = (greatest / torch.full_like(greatest, end)).bfloat16()
        error = (grouped - _whole(grouped, scale.float(), -8, 7) * scale.float().unsqueeze(-1)).square().sum(-1)
        best = torch.where(error < best_error, scale, best)
        best_error = torch.minimum(error, best_error)
    return torch.where(greatest < _TINY, 0.0, best.float()).bfloat16()
