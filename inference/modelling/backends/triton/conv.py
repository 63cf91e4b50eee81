# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Causal convolutions on the device: one token of many sequences, and a chunk of one sequence.

They are launches of their own before a recurrence: several heads read the same channels, so a head that advanced
their tails in place would change what the others read.

State slot 0 is read as zero and never written.

Chunks begin anywhere and have any length. Neither may be what a kernel is compiled anew for: requests would wait. So
the kernels take whole tensors, whose addresses have the same alignment in each step, and a chunk's place as numbers.

Shape letters: T rows, C channels, K taps, L tokens of a chunk.

Reference: ``layers.conv.CausalConv1d``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.activations import activate
from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.conv import CausalConv1d


@triton.jit
def _conv_step(
    rows_ptr, state_ptr, slots_ptr, weight_ptr, bias_ptr, out_ptr, rows_row,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, TILE: tl.constexpr, HAS_BIAS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channels < CHANNELS
    slot = tl.load(slots_ptr + row)
    owned = channels < tl.where(slot != 0, CHANNELS, 0)
    tail = state_ptr + (slot * CHANNELS + channels) * (TAPS - 1)
    entering = tl.load(rows_ptr + row * rows_row + channels, mask=inside, other=0.0).to(tl.float32)
    total = entering * tl.load(weight_ptr + channels * TAPS + TAPS - 1, mask=inside, other=0.0).to(tl.float32)
    # Each channel belongs to one lane, which reads an entry before it overwrites the one before it.
    for tap in tl.static_range(TAPS - 1):
        earlier = tl.load(tail + tap, mask=owned, other=0.0)
        total += earlier * tl.load(weight_ptr + channels * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
        if tap > 0:
            tl.store(tail + tap - 1, earlier, mask=owned)
    if TAPS > 1:
        tl.store(tail + TAPS - 2, entering, mask=owned)
    if HAS_BIAS:
        total += tl.load(bias_ptr + channels, mask=inside, other=0.0).to(tl.float32)
    if KIND is not None:
        total = activate(total, KIND)
    tl.store(out_ptr + row * CHANNELS + channels, total, mask=inside)


def conv_step(
    rows: torch.Tensor,
    conv_state: torch.Tensor,
    slots: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    out: torch.Tensor,
) -> None:
    """One input of each sequence through the causal convolution; the tails move on by one.

    Args:
        rows: (T, C), unit stride in the last axis; the first B are computed.
        conv_state: (slots, C, K-1) float32, contiguous.
        slots: (B,) int64.
        weight: (C, 1, K); bias: (C,) or None.
        activation: Applied to the sum; None: none is.
        out: (T, C) float32, contiguous; the first B rows are written.
    """
    channels, tile = rows.shape[1], 256
    _conv_step[(slots.shape[0], triton.cdiv(channels, tile))](
        rows, conv_state, slots, weight, rows if bias is None else bias, out, rows.stride(0),
        CHANNELS=channels, TAPS=weight.shape[-1], TILE=tile, HAS_BIAS=bias is not None, KIND=activation, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["start", "length", "slot"])
def _conv_chunk(
    rows_ptr, state_ptr, weight_ptr, bias_ptr, out_ptr, start, length, slot, rows_row,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, ROW_TILE: tl.constexpr, TILE: tl.constexpr,
    ENTRIES: tl.constexpr, FRESH: tl.constexpr, HAS_BIAS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Some rows of a chunk. The program of the first rows, which alone reads the old tail, writes the new one."""
    first = tl.program_id(0) * ROW_TILE
    channels = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channels < CHANNELS
    tokens = first + tl.arange(0, ROW_TILE)
    total = tl.zeros((ROW_TILE, TILE), tl.float32)
    rows_ptr += start.to(tl.int64) * rows_row
    out_ptr += start.to(tl.int64) * CHANNELS
    tail = state_ptr + (slot.to(tl.int64) * CHANNELS + channels) * (TAPS - 1)
    for tap in tl.static_range(TAPS):
        sources = tokens + tap - (TAPS - 1)
        known = (sources >= 0) & (tokens < length)
        values = tl.load(
            rows_ptr + sources.to(tl.int64)[:, None] * rows_row + channels[None, :],
            mask=known[:, None] & inside[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        if not FRESH and first == 0:
            before = (sources < 0) & (tokens < length)
            values += tl.load(
                tail[None, :] + (sources + TAPS - 1)[:, None], mask=before[:, None] & inside[None, :], other=0.0
            )
        taps = tl.load(weight_ptr + channels * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
        total += values * taps[None, :]
    if HAS_BIAS:
        total += tl.load(bias_ptr + channels, mask=inside, other=0.0).to(tl.float32)[None, :]
    if KIND is not None:
        total = activate(total, KIND)
    tl.store(
        out_ptr + tokens.to(tl.int64)[:, None] * CHANNELS + channels[None, :], total,
        mask=(tokens < length)[:, None] & inside[None, :],
    )  # fmt: skip
    if first == 0:
        # A chunk shorter than the tail shifts what it held.
        entries = tl.arange(0, ENTRIES)
        origins = length - (TAPS - 1) + entries
        is_kept = (entries < TAPS - 1)[:, None] & inside[None, :]
        entering = tl.load(
            rows_ptr + tl.maximum(origins, 0).to(tl.int64)[:, None] * rows_row + channels[None, :],
            mask=is_kept & (origins >= 0)[:, None], other=0.0,
        ).to(tl.float32)  # fmt: skip
        if not FRESH:
            entering += tl.load(
                tail[None, :] + (entries + length)[:, None], mask=is_kept & (origins < 0)[:, None], other=0.0
            )
        # All lanes have to have read the old tail before any overwrites it.
        tl.debug_barrier()
        tl.store(tail[None, :] + entries[:, None], entering, mask=is_kept)


def conv_chunk(
    rows: torch.Tensor,
    conv_state: torch.Tensor,
    chunk: PrefillChunk,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    out: torch.Tensor,
) -> None:
    """A chunk of one sequence through the causal convolution.

    Args:
        rows: (T, C), unit stride in the last axis; those of the chunk are computed.
        conv_state: (slots, C, K-1) float32, contiguous; the sequence's entry is overwritten. Where the sequence starts
            with the chunk, zeros come before it, whatever the entry holds.
        weight: (C, 1, K); bias: (C,) or None.
        activation: Applied to the sum; None: none is.
        out: (T, C) float32, contiguous; the chunk's rows are written.
    """
    channels, length = rows.shape[1], chunk.stop - chunk.start
    taps, tile = weight.shape[-1], 128
    row_tile = max(16, triton.next_power_of_2(taps - 1))  # only the first rows see what is before the chunk
    _conv_chunk[(triton.cdiv(length, row_tile), triton.cdiv(channels, tile))](
        rows, conv_state, weight, rows if bias is None else bias, out, chunk.start, length, chunk.state_slot,
        rows.stride(0),
        CHANNELS=channels, TAPS=taps, ROW_TILE=row_tile, TILE=tile, ENTRIES=triton.next_power_of_2(max(1, taps - 1)),
        FRESH=chunk.context_len == 0, HAS_BIAS=bias is not None, KIND=activation, num_warps=4,
    )  # fmt: skip


def convolve(layer: CausalConv1d, rows: torch.Tensor, batch: ForwardBatch, conv_state: torch.Tensor) -> torch.Tensor:
    """``CausalConv1d.convolve``: the decoding rows by one launch, each chunk by one."""
    if layer.dilation > 1:
        return CausalConv1d.convolve(layer, rows, batch, conv_state)
    out = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    weights = layer.weight, layer.bias, layer.activation
    if batch.num_decodes:
        conv_step(rows, conv_state, batch.decode_state_slots, *weights, out)
    for chunk in batch.prefills:
        conv_chunk(rows, conv_state, chunk, *weights, out)
    return out
