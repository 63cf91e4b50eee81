# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Weights in the codes of files, expanded inside the product, so that a decode reads the codes' bytes alone.

Codes lie in rows, in the planes of ``layers.coded.pack_planes``. A value is scale · level + offset in float32 (scales
and offsets times their factors, if there are any), rounded to the rows' type as ``dense`` rounds it. Up to ``MAX_ROWS``
rows are multiplied in tiles; above that the weight is expanded once and the library's product used, as arithmetic
bounds it then.

Shape letters: M rows, N outputs, K inputs, E experts.

Reference: ``layers.coded.PlainCoded``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.quantised import FEW_ROWS, MAX_ROWS, ExpandedInside
from inference.modelling.layers.coded import PlainCoded, PlainStore
from inference.modelling.quantisation import FACTOR_INPUTS, FLOAT8_STEP, Form


@dataclass(frozen=True, slots=True)
class DeviceCoded(ExpandedInside):
    """A matrix (N, K), or a stack (E, N, K), that Triton kernels read.

    Attributes:
        plain: The codes in rows, on the device.
        levels: (2^bits,) float32: what each code stands for.
    """

    plain: PlainCoded
    levels: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K) or (E, N, K)."""
        return *self.plain.planes.shape[:-1], self.plain.inputs

    @property
    def nbytes(self) -> int:
        """Memory of codes, scales, offsets and factors."""
        return self.plain.nbytes

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """x Wᵀ + b, (…, K) to (…, N) of ``dtype``."""
        return _product(hidden, self, bias, dtype)

    def expanded(self, ids: torch.Tensor | None, count: int, dtype: torch.dtype) -> torch.Tensor:
        """(count, K): the rows of these numbers, or all."""
        return _expanded(self, ids, count, dtype)

    def matrix(self, number: int) -> DeviceCoded:
        """Return one matrix of a stack."""
        return DeviceCoded(self.plain.matrix(number), self.levels)

    def operands(self) -> tuple[torch.Tensor, ...]:
        """What kernels read: codes, scales, offsets, factors (the scales again, where there are none) and levels."""
        plain, scales = self.plain, self.plain.scales
        offsets, factors = (scales if part is None else part for part in (plain.offsets, plain.factors))
        return plain.planes, scales, offsets, factors, self.levels

    def constants(self) -> dict[str, Any]:
        """What kernels are compiled for."""
        form = self.plain.form
        return {
            "INPUTS": self.plain.inputs, "BITS": form.bits, "GROUP": form.group, "HAS_OFFSET": form.has_offset,
            "FACTOR": FACTOR_INPUTS if form.has_factors else 0, "ZERO": None if self.has_table else form.zero,
        }  # fmt: skip

    @property
    def has_table(self) -> bool:
        """Whether levels are looked up; others are computed."""
        return bool(self.plain.form.levels) or self.plain.form.is_float

    def tile_options(self, rows: int, dtype: torch.dtype) -> dict[str, Any]:
        """How kernels around ``code_sums`` are compiled for this many rows of a tile."""
        exact, few = dtype == torch.float32, rows <= FEW_ROWS
        inputs = min(32, self.plain.form.group)
        return {
            "ROW_TILE": rows, "OUTPUT_TILE": 1024 // inputs if few else 64, "INPUT_TILE": inputs,
            "PARTS": 8 if few else 2, "PRECISION": "ieee" if exact else "tf32", "num_warps": 16 if few else 8,
            # In two stages the levels of a table would be copied to on-chip memory, one by one.
            "num_stages": 1 if self.has_table else 2,
        }  # fmt: skip


class DeviceStore:
    """Rows of codes for the kernels.

    Args:
        plain: Memory on the device.
    """

    def __init__(self, plain: PlainStore) -> None:
        self.put = plain.put
        form, planes = plain.packed.form, plain.packed.planes
        levels = torch.tensor(level_values(form), dtype=torch.float32, device=planes.device)
        self.packed = DeviceCoded(plain.packed, levels)


def level_values(form: Form) -> list[float]:
    """What each code of a form stands for."""
    if form.is_float:
        floats: list[float] = (
            torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float() * FLOAT8_STEP
        ).tolist()
        return floats
    return [float(level) for level in form.levels or range(-form.zero, (1 << form.bits) - form.zero)]


@triton.jit
def _plane_codes(plane, start, within, INPUTS: tl.constexpr, BITS: tl.constexpr, COUNT: tl.constexpr):
    """The bits of ``COUNT`` codes that a plane has, in int32: bytes are read together, then divided."""
    PER_BYTE: tl.constexpr = 8 // BITS
    byte = start // PER_BYTE + tl.arange(0, COUNT // PER_BYTE)[None, None, :]
    mask = (byte < (INPUTS + PER_BYTE - 1) // PER_BYTE) & within
    codes = tl.load(plane + byte, mask=mask, other=0).to(tl.int32)
    if BITS <= 4:
        codes = tl.interleave(codes & 15, codes >> 4)
    if BITS <= 2:
        codes = tl.interleave(codes & 3, codes >> 2)
    if BITS == 1:
        codes = tl.interleave(codes & 1, codes >> 1)
    return codes


@triton.jit
def _scales_of(scales, factors, column, mask, GROUP: tl.constexpr, FACTOR: tl.constexpr, KINDS: tl.constexpr):
    """The scales, or offsets, of some columns in float32, multiplied out."""
    found = tl.load(scales + column // GROUP, mask=mask, other=0).to(tl.float32)
    if FACTOR:
        factor = tl.load(factors + column // FACTOR * KINDS, mask=mask, other=0).to(tl.float32)
        found *= factor
    return found


@triton.jit
def code_values(
    planes, scales, offsets, factors, levels_ptr, start, within, INPUTS: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_OFFSET: tl.constexpr, FACTOR: tl.constexpr, ZERO: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Expand ``COUNT`` neighbouring values of some rows to float32, for kernels; three axes, the last one theirs.

    Args:
        planes, scales, offsets, factors: (1, rows, 1) where the rows begin.
        levels_ptr: Where the levels are.
        start: (parts, 1, 1) the first inputs, multiples of ``COUNT``.
        within: (1, rows, 1) which of the rows are there.
        INPUTS, BITS, GROUP, HAS_OFFSET: Of the weight.
        FACTOR: Inputs that share a factor; 0: the weight has none.
        ZERO: A level is its code less this; None: it is in the table of levels.
        COUNT: At least 8.
    """
    WIDTH: tl.constexpr = 8 if BITS == 8 else (4 if BITS >= 4 else 2)
    code = _plane_codes(planes, start, within, INPUTS, WIDTH, COUNT)
    if BITS > WIDTH:
        LOW_BYTES: tl.constexpr = (INPUTS * WIDTH + 7) // 8
        code |= _plane_codes(planes + LOW_BYTES, start, within, INPUTS, BITS - WIDTH, COUNT) << WIDTH
    if ZERO is None:
        level = tl.load(levels_ptr + code)
    else:
        # In the lowest places of 2^23 a code is that plus itself; converting integers is slow.
        level = (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)
    # Values that share a scale share its load.
    column = start if GROUP % COUNT == 0 else start + tl.arange(0, COUNT)[None, None, :]
    mask = (column < INPUTS) & within
    KINDS: tl.constexpr = 2 if HAS_OFFSET else 1
    value = level * _scales_of(scales, factors, column, mask, GROUP, FACTOR, KINDS)
    if HAS_OFFSET:
        value += _scales_of(offsets, factors + 1, column, mask, GROUP, FACTOR, KINDS)
    return value


@triton.jit
def code_sums(
    rows, real, planes_ptr, scales_ptr, offsets_ptr, factors_ptr, levels_ptr, output, within,
    INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, HAS_OFFSET: tl.constexpr, FACTOR: tl.constexpr,
    ZERO: tl.constexpr, ROW_TILE: tl.constexpr, OUTPUT_TILE: tl.constexpr, INPUT_TILE: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some outputs of some rows, (OUTPUT_TILE, ROW_TILE) float32, for kernels.

    The inputs are divided among groups of warps, as in ``quantised.tile_sums``.

    Args:
        rows: (1, ROW_TILE) where rows begin.
        real: (1, ROW_TILE) which of them are there.
        output: (OUTPUT_TILE, 1) numbers of the outputs, int64.
        within: (OUTPUT_TILE, 1) which of them are there.
        ROW_TILE, OUTPUT_TILE, INPUT_TILE: At least 16; the last are those of a group of warps.
        PARTS: Groups of warps.
        PRECISION: Of float32 products.
    """
    WIDTH: tl.constexpr = 8 if BITS == 8 else (4 if BITS >= 4 else 2)
    ROW_BYTES: tl.constexpr = (INPUTS * WIDTH + 7) // 8 + (INPUTS * (BITS - WIDTH) + 7) // 8
    GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
    planes = planes_ptr + output * ROW_BYTES
    scales, offsets, factors = scales_ptr + output * GROUPS, offsets_ptr + output * GROUPS, factors_ptr
    if FACTOR:
        factors += output * ((INPUTS + FACTOR - 1) // FACTOR * (2 if HAS_OFFSET else 1))
    part = tl.arange(0, PARTS)[:, None, None] * INPUT_TILE
    total = tl.zeros((PARTS, OUTPUT_TILE, ROW_TILE), tl.float32)
    for step in range(0, INPUTS, PARTS * INPUT_TILE):
        weight = code_values(
            planes[None], scales[None], offsets[None], factors[None] if FACTOR else factors, levels_ptr, step + part,
            within[None], INPUTS, BITS, GROUP, HAS_OFFSET, FACTOR, ZERO, INPUT_TILE,
        )  # fmt: skip
        across = step + part + tl.arange(0, INPUT_TILE)[None, :, None]
        values = tl.load(rows[None] + across, mask=real[None] & (across < INPUTS), other=0.0)
        total = tl.dot(weight.to(values.dtype), values, total, input_precision=PRECISION)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["rows"])
def _code_product(
    rows_ptr, planes_ptr, scales_ptr, offsets_ptr, factors_ptr, levels_ptr, bias_ptr, out_ptr, rows, rows_row,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, HAS_OFFSET: tl.constexpr,
    FACTOR: tl.constexpr, ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, ROW_TILE: tl.constexpr, OUTPUT_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    output = (tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)[:, None]).to(tl.int64)
    within = output < OUTPUTS
    number = tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)[None, :]
    real = number < rows
    total = code_sums(
        rows_ptr + number.to(tl.int64) * rows_row, real, planes_ptr, scales_ptr, offsets_ptr, factors_ptr, levels_ptr,
        output, within, INPUTS, BITS, GROUP, HAS_OFFSET, FACTOR, ZERO, ROW_TILE, OUTPUT_TILE, INPUT_TILE, PARTS,
        PRECISION,
    )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias_ptr + output, mask=within, other=0.0).to(tl.float32)
    target = out_ptr + number.to(tl.int64) * OUTPUTS + output
    tl.store(target, total.to(out_ptr.dtype.element_ty), mask=real & within)


@triton.jit
def _expand_codes(
    ids_ptr, planes_ptr, scales_ptr, offsets_ptr, factors_ptr, levels_ptr, out_ptr, ROW_BYTES: tl.constexpr,
    INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, HAS_OFFSET: tl.constexpr, FACTOR: tl.constexpr,
    ZERO: tl.constexpr, HAS_IDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Some columns of one row, written as they lie in a matrix."""
    row = tl.program_id(0).to(tl.int64)
    source = row
    if HAS_IDS:
        source = tl.load(ids_ptr + row)
    start = tl.program_id(1) * TILE
    groups = source * ((INPUTS + GROUP - 1) // GROUP)
    factors = factors_ptr
    if FACTOR:
        factors += source * ((INPUTS + FACTOR - 1) // FACTOR * (2 if HAS_OFFSET else 1))
    values = code_values(
        planes_ptr + source * ROW_BYTES, scales_ptr + groups, offsets_ptr + groups, factors, levels_ptr,
        tl.full((1, 1, 1), start, tl.int32), tl.full((1, 1, 1), True, tl.int1),
        INPUTS, BITS, GROUP, HAS_OFFSET, FACTOR, ZERO, TILE,
    )  # fmt: skip
    column = start + tl.arange(0, TILE)[None, None, :]
    tl.store(out_ptr + row * INPUTS + column, values.to(out_ptr.dtype.element_ty), mask=column < INPUTS)


def _product(hidden: torch.Tensor, weight: DeviceCoded, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x Wᵀ + b, (…, K) to (…, N) of ``dtype``."""
    outputs, inputs = weight.shape
    rows = hidden.reshape(-1, inputs)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    count = rows.shape[0]
    out = torch.empty(count, outputs, dtype=dtype, device=hidden.device)
    if count:
        tile = FEW_ROWS if count <= FEW_ROWS else MAX_ROWS
        options = weight.tile_options(tile, hidden.dtype)
        grid = (triton.cdiv(outputs, options["OUTPUT_TILE"]), triton.cdiv(count, tile))
        _code_product[grid](
            rows, *weight.operands(), rows if bias is None else bias, out, count, rows.stride(0),
            OUTPUTS=outputs, HAS_BIAS=bias is not None, **weight.constants(), **options,
        )  # fmt: skip
    return out.view(*hidden.shape[:-1], outputs)


def _expanded(weight: DeviceCoded, ids: torch.Tensor | None, count: int, dtype: torch.dtype) -> torch.Tensor:
    """(count, K): the rows of these numbers, or all of a matrix or stack."""
    inputs, operands = weight.plain.inputs, weight.operands()
    out = torch.empty(count, inputs, dtype=dtype, device=weight.levels.device)
    tile = max(8, min(1024, triton.next_power_of_2(inputs)))
    if count:
        _expand_codes[(count, triton.cdiv(inputs, tile))](
            operands[0] if ids is None else ids.contiguous(), *operands, out,
            ROW_BYTES=operands[0].shape[-1], **weight.constants(), HAS_IDS=ids is not None, TILE=tile, num_warps=4,
        )  # fmt: skip
    return out
