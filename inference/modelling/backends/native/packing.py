"""Weights in the native kernels' layouts, packed whole or row by row while they are read."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from inference.modelling.layers.coded import Codes
from inference.modelling.layers.packed import PlainQuantised
from inference.modelling.quantisation import BLOCK_ROWS, GROUP_SIZES, MAX_TABLE_BITS, Form

_FORMATS = {"int8": 0, "int4": 1, "bfloat16": 2, "float32": 3}
"""The numbers that ``inference/modelling/backends/native/src/gemm_layout.h`` gives its layouts."""
NATIVE_DTYPES = (torch.float32, torch.bfloat16)
"""What the native kernels compute in, and what they quantise."""
PIECE_BYTES = 4 << 20
"""Of stored rows that are packed at once: the disk is asked seldom enough (docs/performance.md)."""


_INT8_OFFSET = 128
"""Added to int8's codes, whose bytes are unsigned in the native layout."""
_NEAREST_ZERO = 0x88
"""Two codes of int4 for the level nearest to 0, which stand where there is no weight."""


@dataclass(frozen=True, slots=True)
class NativePacked:
    """A matrix, or a stack of matrices, in the layout of the native kernels.

    Attributes:
        data: (…, blocks, bytes) uint8.
        scales: (…, blocks, groups, 32) bfloat16; empty for what isn't quantised. For codes of a file of the form's
            dtype, and with offsets (…, blocks, groups, 64). With factors (…, blocks, ⌈groups / 2⌉ + ⌈K /
            ``FACTOR_INPUTS``⌉, 32 or 64) float16, of which the first lines are bytes, two groups in each, and the
            others factors.
        format: A number of ``_FORMATS``, or that of a form.
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

    @property
    def is_quantised(self) -> bool:
        """Whether values were rounded to fewer bits."""
        return self.group > 0

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

    def argmax(
        self, hidden: torch.Tensor, bias: torch.Tensor | None, masked: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's greatest output as ``wide_linear`` computes them, without all of them in memory.

        Args:
            hidden: (n, K).
            masked: ``output_bits`` of outputs to leave out.

        Returns:
            (n,) int64 its position, the first among equals, and (n,) float32 its value; 0 and NaN if one is NaN.
        """
        places, values = torch.ops.blazr.packed_argmax.default(
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


def pack_native(weight: torch.Tensor, form: str) -> NativePacked:
    """Into the native layout ``form`` (a name of ``_FORMATS``)."""
    group = GROUP_SIZES.get(form, 0)  # type: ignore[call-overload]
    data, scales = torch.ops.blazr.pack_weight.default(weight.contiguous(), _FORMATS[form], group)
    return NativePacked(data, scales, _FORMATS[form], weight.shape[-2], weight.shape[-1], group)


def arrange_codes(quantised: PlainQuantised) -> NativePacked:
    """Put codes and scales in rows into the native layout (``src/gemm_layout.h``)."""
    *stack, outputs, _ = quantised.values.shape
    blocks, kind = -(-outputs // BLOCK_ROWS), quantised.kind
    group, fill = GROUP_SIZES[kind], blocks * BLOCK_ROWS - outputs
    shape = [*stack, outputs, quantised.inputs]
    data, scales = torch.ops.blazr.empty_packed.default(shape, _FORMATS[kind], group)
    by_block = (*stack, blocks, BLOCK_ROWS)
    scales.copy_(functional.pad(quantised.scales, (0, 0, 0, fill)).view(*by_block, -1).mT)
    if kind == "int8":
        codes = quantised.values.view(torch.uint8) ^ _INT8_OFFSET
        steps = functional.pad(codes, (0, -quantised.inputs % 4, 0, fill), value=_INT8_OFFSET)
    else:
        pairs = functional.pad(quantised.values, (0, -quantised.values.shape[-1] % 4, 0, fill), value=_NEAREST_ZERO)
        eights = torch.stack((pairs & 15, pairs >> 4), -1).view(*pairs.shape[:-1], -1, 2, 4)
        steps = (eights[..., 0, :] | eights[..., 1, :] << 4).flatten(-2)
    # (…, block, output, step, 4) to (…, block, step, output, 4)
    arranged = steps.reshape(*by_block, -1, 4).transpose(-3, -2)
    data.view(arranged.shape).copy_(arranged)
    return NativePacked(data, scales, _FORMATS[kind], outputs, quantised.inputs, group)


class NativeStore:
    """Rows of codes, as they are, in the native layout.

    Args:
        shape: Of the whole; a stack's matrices have whole blocks of rows.
        form: What the codes mean.
    """

    def __init__(self, shape: Sequence[int], form: Form) -> None:
        self._form, number = form, _form_number(form)
        data, scales = torch.ops.blazr.empty_packed.default(list(shape), number, form.group)
        self.packed = NativePacked(data, scales, number, shape[-2], shape[-1], form.group)

    def put(self, rows: Codes, first: int) -> None:
        """Pack rows on this thread."""
        packed = self.packed
        if not self._form.has_factors:
            rows = rows.without_factors()
        dtype = packed.scales.dtype if rows.factors is None else torch.int8
        torch.ops.blazr.pack_codes.default(
            rows.codes.contiguous(),
            rows.scales.to(dtype).contiguous(),
            None if rows.offsets is None else rows.offsets.to(dtype).contiguous(),
            None if rows.factors is None else rows.factors.half().contiguous(),
            packed.data,
            packed.scales,
            first,
            packed.format,
            packed.group,
        )


@functools.cache
def _form_number(form: Form) -> int:
    """The number that the kernels give a form in this process."""
    levels = form.levels or tuple(code - form.zero for code in range(1 << form.bits))
    number: int = torch.ops.blazr.add_form.default(
        form.bits,
        levels if form.bits <= MAX_TABLE_BITS else [],
        form.zero,
        form.has_offset,
        form.scales == "float16",
        form.is_float,
        form.has_factors,
    )
    return number


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
