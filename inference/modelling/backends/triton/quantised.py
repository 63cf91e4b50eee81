# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""int8 and int4 weights, expanded inside the product, so that a decode reads a half or a quarter of the bytes.

Rounding is that of ``layers.packed``; only the places of the values are this device's. A *chunk* is what one thread
loads at once: 16 bytes of one output, four 32-bit words. In int4 it holds the 32 inputs of one scale, in int8 16 of
128. Value i of word j is input 4i + j of the chunk: so the i-th values of the four words meet four inputs that lie
together, and nothing has to be shuffled between threads.

No integer is ever converted: a byte n put into the lowest place of the float32 2^23 makes it 2^23 + n, and one
subtraction leaves n. The nibbles of int4 first become the bytes of their levels, eight at a time: PTX's ``prmt``
chooses four bytes of eight by the nibbles of a word (PTX ISA, section "prmt").

One row is multiplied on the ordinary cores: a thread holds a chunk of an output, and its sums stay in float32 to the
end. It needs few registers, so that enough warps are resident to cover the loads: what a loop loads ahead, the compiler
moves down to where it is used. 2 to 64 rows are multiplied in tiles, with matrix instructions; their expanded weights
are rounded as ``dense`` rounds them. Above that the weight is expanded to a matrix once and the library's product used,
as arithmetic bounds it then.

Shape letters: M rows, N outputs, K inputs, C chunks of an output, w words.

Reference: ``layers.packed.PlainQuantised``.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from inference.modelling.layers.packed import PlainQuantised, quantise_plainly
from inference.modelling.quantisation import GROUP_SIZES, INT4_LEVELS, Kind

BITS: dict[Kind, int] = {"int8": 8, "int4": 4}
CHUNK_WORDS = 4
MANY_OUTPUTS = 8192
"""From so many outputs on, programs of two warps are enough to keep a device busy with a product of one row."""
PRODUCT_ROWS = (1, 16, 64)
"""Up to how many rows each kernel for products with quantised weights is used; beyond them, the library's product."""
FEW_ROWS, MAX_ROWS = PRODUCT_ROWS[1:]
"""Of a tile of rows; above the second, nothing is expanded inside a product."""
PIECE_VALUES = 1 << 24
"""Of a matrix that are quantised at once: their float32 copies are 64 MiB each, some of them there together."""


def _four_levels(first: int) -> int:
    """Four unsigned levels of int4 in an int32."""
    return int.from_bytes(bytes(level + 128 for level in INT4_LEVELS[first : first + 4]), "little", signed=True)


EXPANSION = (*(_four_levels(first) for first in range(0, 16, 4)), 0x4B000000)
"""What kernels expand values with: the levels of int4, and 2^23 as the bits of a float32.

They are arguments because the compiler doesn't keep constants in registers: ``prmt`` takes two of them, and each use
would first move both there, a fifth of all instructions."""
# Three bits of each nibble choose of the lower eight levels and of the upper ones, the fourth bit of these two.
_CHOOSE_LEVELS = tl.constexpr("""{
    .reg .b32 level, half, lower, upper;
    and.b32 level, $2, 0x77777777;
    shr.u32 half, $2, 1;
    lop3.b32 half, half, 0x44444444, 0x32103210, 0xea;
    prmt.b32 lower, $3, $4, level;
    prmt.b32 upper, $5, $6, level;
    prmt.b32 $0, lower, upper, half;
    shr.u32 level, level, 16;
    shr.u32 half, half, 16;
    prmt.b32 lower, $3, $4, level;
    prmt.b32 upper, $5, $6, level;
    prmt.b32 $1, lower, upper, half;
}""")
_PUT_BYTE = tl.constexpr(tuple(f"prmt.b32 $0, $1, $2, 0x754{place};" for place in range(4)))


class ExpandedInside(ABC):
    """A weight whose values its kernels expand inside the product."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(N, K) or (E, N, K)."""

    @abstractmethod
    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """x Wᵀ + b, (…, K) to (…, N) of ``dtype``."""

    @abstractmethod
    def expanded(self, ids: torch.Tensor | None, count: int, dtype: torch.dtype) -> torch.Tensor:
        """(count, K): the rows of these numbers, or all of a matrix or stack."""

    @property
    def is_quantised(self) -> bool:
        """Whether values have fewer bits than a float."""
        return True

    def linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """(…, K) to (…, N), in the same dtype."""
        if math.prod(hidden.shape[:-1]) > MAX_ROWS:
            return functional.linear(hidden, self.dense(hidden.dtype), bias)
        return self.product(hidden, bias, hidden.dtype)

    def wide_linear(self, hidden: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The same in float32: the sums as they are, not rounded on the way, whatever the number of rows."""
        return self.product(hidden, bias, torch.float32)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """(n,) int64 to (n, K)."""
        return self.expanded(ids, ids.shape[0], dtype)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """(…, N, K)."""
        return self.expanded(None, math.prod(self.shape[:-1]), dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class DeviceQuantised(ExpandedInside):
    """A matrix (N, K), or a stack (E, N, K), that Triton kernels read.

    Attributes:
        words: (…, N, 4 · C) int32.
        scales: (…, N, groups) bfloat16.
        kind: ``int8`` or ``int4``.
        inputs: K.
    """

    words: torch.Tensor
    scales: torch.Tensor
    kind: Kind
    inputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, K) or (E, N, K)."""
        return *self.words.shape[:-1], self.inputs

    @property
    def bits(self) -> int:
        """Of a value."""
        return BITS[self.kind]

    @property
    def chunk(self) -> int:
        """Inputs of a chunk."""
        return CHUNK_WORDS * 32 // self.bits

    @property
    def group(self) -> int:
        """Inputs of a scale."""
        return GROUP_SIZES[self.kind]

    @property
    def nbytes(self) -> int:
        """Memory of values and scales."""
        return self.words.nbytes + self.scales.nbytes

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
        """x Wᵀ + b, (…, K) to (…, N) of ``dtype``."""
        return _product(hidden, self, bias, dtype)

    def expanded(self, ids: torch.Tensor | None, count: int, dtype: torch.dtype) -> torch.Tensor:
        """(count, K): the rows of these numbers, or all."""
        return _expanded(self, ids, count, dtype)

    def matrix(self, number: int) -> DeviceQuantised:
        """One matrix of a stack."""
        return DeviceQuantised(self.words[number], self.scales[number], self.kind, self.inputs)


def quantise_for_device(weight: torch.Tensor, kind: Kind) -> DeviceQuantised:
    """Quantise (N, K) or (E, N, K) piece by piece, so that the peak is the result and some pieces.

    Args:
        weight: float32 or bfloat16, on the device.
        kind: How.
    """
    inputs = weight.shape[-1]
    chunks, groups = -(-inputs * BITS[kind] // (CHUNK_WORDS * 32)), -(-inputs // GROUP_SIZES[kind])
    words = torch.empty(*weight.shape[:-1], chunks * CHUNK_WORDS, dtype=torch.int32, device=weight.device)
    scales = torch.empty(*weight.shape[:-1], groups, dtype=torch.bfloat16, device=weight.device)
    step = max(1, PIECE_VALUES // inputs)
    pieces = (torch.split(part.flatten(0, -2), step) for part in (weight, words, scales))
    for piece, its_words, its_scales in zip(*pieces, strict=True):
        plain = quantise_plainly(piece, kind)
        its_words.copy_(_arranged(plain))
        its_scales.copy_(plain.scales)
    return DeviceQuantised(words, scales, kind, inputs)


def arrange_for_device(plain: PlainQuantised) -> DeviceQuantised:
    """Codes and scales in rows, on the device, in the places that the kernels read."""
    flat = PlainQuantised(plain.values.flatten(0, -2), plain.scales, plain.kind, plain.inputs)
    words = _arranged(flat).view(*plain.values.shape[:-1], -1)
    return DeviceQuantised(words, plain.scales.contiguous(), plain.kind, plain.inputs)


def _arranged(plain: PlainQuantised) -> torch.Tensor:
    """(n, 4 · C) int32: the values of some rows in their places."""
    per_word = 32 // BITS[plain.kind]
    if plain.kind == "int8":
        offset = (plain.values.to(torch.int16) + 128).to(torch.uint8)
    else:
        offset = torch.stack((plain.values & 15, plain.values >> 4), -1).flatten(-2)[..., : plain.inputs]
    padded = functional.pad(offset, (0, -plain.inputs % (CHUNK_WORDS * per_word)))
    places = padded.view(padded.shape[0], -1, per_word, CHUNK_WORDS).transpose(-1, -2)
    if plain.kind == "int4":
        places = places[..., ::2] | places[..., 1::2] << 4
    return places.contiguous().view(torch.int32).flatten(1)


if os.environ.get("TRITON_INTERPRET") == "1":  # the interpreter has no PTX

    @triton.jit
    def _eight_levels(nibbles, expansion):
        """The unsigned levels of int32 words, a byte for each: those of the lower four nibbles, of the upper four."""
        lower, upper = nibbles * 0, nibbles * 0
        for place in tl.static_range(8):
            number = (nibbles >> (place * 4)) & 15
            first, second = tl.where(number < 4, expansion[0], expansion[1]), expansion[2]
            quarter = tl.where(number < 8, first, tl.where(number < 12, second, expansion[3]))
            level = ((quarter >> ((number & 3) * 8)) & 255) << (place % 4 * 8)
            if place < 4:
                lower |= level
            else:
                upper |= level
        return lower, upper

    @triton.jit
    def _value(numbers, PLACE: tl.constexpr, expansion):
        """A byte of int32 words less 128, in float32."""
        return (((numbers >> (PLACE * 8)) & 255) - 128).to(tl.float32)

else:

    @triton.jit
    def _eight_levels(nibbles, expansion):
        """The unsigned levels of int32 words, a byte for each: those of the lower four nibbles, of the upper four."""
        return tl.inline_asm_elementwise(
            _CHOOSE_LEVELS, "=&r,=&r,r,r,r,r,r", [nibbles, expansion[0], expansion[1], expansion[2], expansion[3]],
            dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip

    @triton.jit
    def _value(numbers, PLACE: tl.constexpr, expansion):
        """A byte of int32 words less 128, in float32."""
        raised = tl.inline_asm_elementwise(
            _PUT_BYTE[PLACE], "=f,r,r", [numbers, expansion[4]], dtype=tl.float32, is_pure=True, pack=1
        )
        return raised - (8388608.0 + 128.0)


@triton.jit
def _unsigned(words, expansion, BITS: tl.constexpr):
    """int32 words to the unsigned bytes of their first four values, and of the next four, if they have as many."""
    if BITS == 4:
        first, second = _eight_levels(words, expansion)
    else:
        first, second = words, words
    return first, second


@triton.jit
def _row_product(
    row_ptr, words_ptr, scales_ptr, bias_ptr, out_ptr, expansion,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr,
    WARPS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One row times 8 outputs.

    The axes are, in this order, a thread's warp, its place in the warp (eight outputs, four chunks), and the words that
    it loads at once. So the threads of a warp load pieces of 64 bytes, and no thread needs another one's sums before
    the end. ``EVEN``: no load reaches beyond the weight or the row, so that none has to be masked.
    """
    PER_WORD: tl.constexpr = 32 // BITS
    CHUNK: tl.constexpr = 4 * PER_WORD
    CHUNKS: tl.constexpr = (INPUTS + CHUNK - 1) // CHUNK
    GROUPS: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
    warp = tl.arange(0, WARPS)[:, None, None, None]
    output = tl.program_id(0) * 8 + tl.arange(0, 8)[None, :, None, None]
    place_in_warp = tl.arange(0, 4)[None, None, :, None]
    word = tl.arange(0, 4)[None, None, None, :]
    matrix = words_ptr + output.to(tl.int64) * (CHUNKS * 4) + word
    scales = scales_ptr + output.to(tl.int64) * GROUPS
    total = tl.zeros((WARPS, 8, 4, 1), tl.float32)
    for step in range(0, CHUNKS, WARPS * 4):
        chunk = step + warp * 4 + place_in_warp
        mask = None if EVEN else (output < OUTPUTS) & (chunk < CHUNKS)
        words = tl.load(matrix + chunk * 4, mask=mask, other=None if EVEN else 0)
        scale = tl.load(scales + chunk * CHUNK // GROUP, mask=mask, other=None if EVEN else 0.0).to(tl.float32)
        first, second = _unsigned(words, expansion, BITS)
        sums = tl.zeros((WARPS, 8, 4, 4), tl.float32)
        for place in tl.static_range(PER_WORD):
            # The outputs' addresses are equal; with them the inputs come to the threads that need them.
            column = chunk * CHUNK + place * 4 + word + output * 0
            values = tl.load(row_ptr + column, mask=None if EVEN else column < INPUTS, other=None if EVEN else 0.0).to(
                tl.float32
            )
            sums += values * _value(first if place < 4 else second, place % 4, expansion)
        total += tl.sum(sums, 3, keep_dims=True) * scale
    result = tl.sum(tl.sum(tl.sum(total, 3), 2), 0)
    output = tl.program_id(0) * 8 + tl.arange(0, 8)
    if HAS_BIAS:
        result += tl.load(bias_ptr + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)
    tl.store(out_ptr + output, result.to(out_ptr.dtype.element_ty), mask=output < OUTPUTS)


@triton.jit
def tile_sums(
    rows, real, matrix, scales, within, expansion, INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    ROW_TILE: tl.constexpr, OUTPUT_TILE: tl.constexpr, WORD_TILE: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Some outputs of some rows, (OUTPUT_TILE, ROW_TILE) float32, for kernels.

    The weight stands on the left: its expanded values then go to the matrix instructions four at a time. The inputs are
    divided among groups of warps, whose sums are added at the end: outputs alone are too few to occupy a device.

    Args:
        rows: (1, ROW_TILE) where rows begin.
        real: (1, ROW_TILE) which of them are there.
        matrix: (OUTPUT_TILE, 1) where the words of outputs begin.
        scales: (OUTPUT_TILE, 1) where their scales begin.
        within: (OUTPUT_TILE, 1) which of them are there.
        expansion: ``EXPANSION``.
        INPUTS, BITS, GROUP: Of the weight.
        ROW_TILE, OUTPUT_TILE: At least 16.
        WORD_TILE: Words of an output that a group of warps multiplies at once, at least 16.
        PARTS: Groups of warps.
        PRECISION: Of float32 products.
    """
    PER_WORD: tl.constexpr = 32 // BITS
    CHUNK: tl.constexpr = 4 * PER_WORD
    WORDS: tl.constexpr = (INPUTS + CHUNK - 1) // CHUNK * 4
    part = tl.arange(0, PARTS)[:, None, None] * WORD_TILE
    total = tl.zeros((PARTS, OUTPUT_TILE, ROW_TILE), tl.float32)
    for step in range(0, WORDS, PARTS * WORD_TILE):
        word = step + part + tl.arange(0, WORD_TILE)[None, None, :]
        mask = (word < WORDS) & within[None]
        words = tl.load(matrix[None] + word, mask=mask, other=0)
        scale = tl.load(scales[None] + word // 4 * CHUNK // GROUP, mask=mask, other=0.0).to(tl.float32)
        first, second = _unsigned(words, expansion, BITS)
        across = step + part + tl.arange(0, WORD_TILE)[None, :, None]
        for place in tl.static_range(PER_WORD):
            column = across // 4 * CHUNK + place * 4 + across % 4
            values = tl.load(rows[None] + column, mask=real[None] & (column < INPUTS), other=0.0)
            # The product is exact in float32: it is rounded once, to the rows' type.
            weight = (_value(first if place < 4 else second, place % 4, expansion) * scale).to(values.dtype)
            total = tl.dot(weight, values, total, input_precision=PRECISION)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["rows"])
def _tile_product(
    rows_ptr, words_ptr, scales_ptr, bias_ptr, out_ptr, expansion, rows, rows_row,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROW_TILE: tl.constexpr, OUTPUT_TILE: tl.constexpr, WORD_TILE: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    CHUNK: tl.constexpr = 128 // BITS
    output = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)[:, None]
    within = output < OUTPUTS
    number = tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)[None, :]
    real = number < rows
    total = tile_sums(
        rows_ptr + number.to(tl.int64) * rows_row, real,
        words_ptr + output.to(tl.int64) * ((INPUTS + CHUNK - 1) // CHUNK * 4),
        scales_ptr + output.to(tl.int64) * ((INPUTS + GROUP - 1) // GROUP), within, expansion,
        INPUTS, BITS, GROUP, ROW_TILE, OUTPUT_TILE, WORD_TILE, PARTS, PRECISION,
    )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias_ptr + output, mask=within, other=0.0).to(tl.float32)
    target = out_ptr + number.to(tl.int64) * OUTPUTS + output
    tl.store(target, total.to(out_ptr.dtype.element_ty), mask=real & within)


@triton.jit
def _expand(
    ids_ptr, words_ptr, scales_ptr, out_ptr, expansion, INPUTS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    HAS_IDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Some columns of one row, written as they lie in a matrix."""
    CHUNK: tl.constexpr = 128 // BITS
    row = tl.program_id(0).to(tl.int64)
    source = row
    if HAS_IDS:
        source = tl.load(ids_ptr + row)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    known = column < INPUTS
    place = column % CHUNK // 4
    word = column // CHUNK * 4 + column % 4
    words = tl.load(words_ptr + source * ((INPUTS + CHUNK - 1) // CHUNK * 4) + word, mask=known, other=0)
    scale = tl.load(scales_ptr + source * ((INPUTS + GROUP - 1) // GROUP) + column // GROUP, mask=known, other=0.0)
    if BITS == 4:
        words, _ = _eight_levels(words >> (place * 4), expansion)
        place = 0
    whole = ((words >> (place * 8)) & 255) - 128
    values = whole.to(tl.float32) * scale.to(tl.float32)
    tl.store(out_ptr + row * INPUTS + column, values.to(out_ptr.dtype.element_ty), mask=known)


def tile_options(rows: int, dtype: torch.dtype) -> dict[str, Any]:
    """How kernels around ``tile_sums`` are compiled for this many rows of a tile."""
    exact, few = dtype == torch.float32, rows <= FEW_ROWS
    return {
        "ROW_TILE": rows, "OUTPUT_TILE": 32 if few else 64, "WORD_TILE": 16, "PARTS": 8 if few else 2,
        "PRECISION": "ieee" if exact else "tf32", "num_warps": 16 if few else 8, "num_stages": 2,
    }  # fmt: skip


def _product(
    hidden: torch.Tensor, weight: DeviceQuantised, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """x Wᵀ + b, (…, K) to (…, N) of ``dtype``."""
    outputs, inputs = weight.shape
    rows = hidden.reshape(-1, inputs)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    count = rows.shape[0]
    out = torch.empty(count, outputs, dtype=dtype, device=hidden.device)
    operands = rows, weight.words, weight.scales, rows if bias is None else bias, out, EXPANSION
    shared = {
        "OUTPUTS": outputs, "INPUTS": inputs, "BITS": weight.bits, "GROUP": weight.group, "HAS_BIAS": bias is not None,
    }  # fmt: skip
    if count == 1:
        chunks = weight.words.shape[-1] // CHUNK_WORDS
        warps = min(2 if outputs >= MANY_OUTPUTS else 4, triton.next_power_of_2(triton.cdiv(chunks, 4)))
        is_even = outputs % 8 == 0 and chunks % (4 * warps) == 0 and chunks * weight.chunk == inputs
        _row_product[(triton.cdiv(outputs, 8),)](*operands, **shared, WARPS=warps, EVEN=is_even, num_warps=warps)
    elif count > 1:
        tile = FEW_ROWS if count <= FEW_ROWS else MAX_ROWS
        options = tile_options(tile, hidden.dtype)
        grid = (triton.cdiv(outputs, options["OUTPUT_TILE"]), triton.cdiv(count, tile))
        _tile_product[grid](*operands, count, rows.stride(0), **shared, **options)
    return out.view(*hidden.shape[:-1], outputs)


def _expanded(weight: DeviceQuantised, ids: torch.Tensor | None, count: int, dtype: torch.dtype) -> torch.Tensor:
    """(count, K): the rows of these numbers, or all of a matrix or stack."""
    out = torch.empty(count, weight.inputs, dtype=dtype, device=weight.words.device)
    tile = min(1024, triton.next_power_of_2(weight.inputs))
    if count:
        _expand[(count, triton.cdiv(weight.inputs, tile))](
            weight.words if ids is None else ids.contiguous(), weight.words, weight.scales, out, EXPANSION,
            INPUTS=weight.inputs, BITS=weight.bits, GROUP=weight.group, HAS_IDS=ids is not None, TILE=tile, num_warps=4,
        )  # fmt: skip
    return out
