# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""RWKV-4 on the device: the shift by one token, and the mean of the values so far, with its gate.

A program of the mean has some channels of one sequence and goes through its rows one after the other, with the sums on
the chip; the loads of later rows are on their way meanwhile.

State slot 0 is read as the state before a first token and never written.

Shape letters: T rows, h hidden, n shares, A channels.

Reference: ``layers.rwkv``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.runs import batch_runs, state_slot
from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.rwkv import NOTHING, TimeMix, TokenShift

SHIFT_TILE = 512
"""Channels of a program: four for each of 128 threads."""
MEAN_TILE = 64
"""Channels of a program of one warp: two for each thread, so that bfloat16 rows are loaded four bytes at a time."""
ROWS_AHEAD = 4
"""Rows of a chunk that are loaded at once."""


@triton.jit(do_not_specialize=["start", "length", "slot"])
def _shift(
    rows_ptr, pool_ptr, slots_ptr, shares_ptr, out_ptr, start, length, slot, rows_row, out_share,
    CHANNELS: tl.constexpr, SHARES: tl.constexpr, HAS_SLOTS: tl.constexpr, FRESH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A row with the row before it. The program of a sequence's first row puts its last one into the pool."""
    number = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channels < CHANNELS
    row = start + number
    if HAS_SLOTS:  # each row is of a sequence of its own
        slot, is_first, last = tl.load(slots_ptr + number), number >= 0, row
    else:
        slot, is_first, last = slot.to(tl.int64), number == 0, row + length - 1
    owned = channels < tl.where(is_first & (slot != 0), CHANNELS, 0)
    entries = pool_ptr + slot * CHANNELS + channels
    within = channels < tl.where(is_first, 0, CHANNELS)
    before = tl.load(rows_ptr + (row - 1) * rows_row + channels, mask=within, other=0.0).to(tl.float32)
    if not FRESH:
        before += tl.load(entries, mask=owned, other=0.0)
    last_row = tl.load(rows_ptr + last * rows_row + channels, mask=owned, other=0.0).to(tl.float32)
    # The load and the store may divide the channels among the threads in different ways.
    tl.debug_barrier()
    tl.store(entries, last_row, mask=owned)
    values = tl.load(rows_ptr + row * rows_row + channels, mask=inside, other=0.0).to(tl.float32)
    for index in tl.static_range(SHARES):
        share = tl.load(shares_ptr + index * CHANNELS + channels, mask=inside, other=0.0)
        mixed = share * values + (1.0 - share) * before
        cells = out_ptr + index * out_share + row * CHANNELS + channels
        tl.store(cells, mixed.to(out_ptr.dtype.element_ty), mask=inside)


def shift_tokens(
    layer: TokenShift, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState
) -> tuple[torch.Tensor, ...]:
    """``TokenShift.shift``: one launch for the decoding rows, and one for each chunk."""
    shares, pool = layer.stacked_shares(), state["shift_state"]
    out = torch.empty(len(shares), *hidden.shape, dtype=hidden.dtype, device=hidden.device)
    channels = hidden.shape[1]
    for run in batch_runs(batch):
        _shift[(run.num_sequences * run.length, triton.cdiv(channels, SHIFT_TILE))](
            hidden, pool, pool if run.slots is None else run.slots, shares, out, run.start, run.length, run.slot,
            hidden.stride(0), out.stride(0),
            CHANNELS=channels, SHARES=len(shares), HAS_SLOTS=run.slots is not None, FRESH=run.fresh, TILE=SHIFT_TILE,
            num_warps=4,
        )  # fmt: skip
    return out.unbind(0)


@triton.jit(do_not_specialize=["start", "length", "slot"])
def _mean(
    key_ptr, value_ptr, receptance_ptr, decay_ptr, bonus_ptr, total_ptr, weight_ptr, peak_ptr, slots_ptr, out_ptr,
    start, length, slot,
    CHANNELS: tl.constexpr, NOTHING: tl.constexpr, HAS_SLOTS: tl.constexpr, FRESH: tl.constexpr,
    TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """``length`` rows of some channels of one sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channels < CHANNELS
    slot = state_slot(slots_ptr, slot, sequence, HAS_SLOTS)
    owned = channels < tl.where(slot != 0, CHANNELS, 0)
    entry = slot * CHANNELS + channels
    if FRESH:
        total, weight = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
        peak = tl.full((TILE,), NOTHING, tl.float32)
    else:
        total = tl.load(total_ptr + entry, mask=owned, other=0.0)
        weight = tl.load(weight_ptr + entry, mask=owned, other=0.0)
        peak = tl.load(peak_ptr + entry, mask=owned, other=NOTHING)
    log_decay = tl.load(decay_ptr + channels, mask=inside, other=0.0)
    bonus = tl.load(bonus_ptr + channels, mask=inside, other=0.0)
    for number in tl.range(0, length, num_stages=AHEAD):
        cells = (start + sequence * length + number) * CHANNELS + channels
        key = tl.load(key_ptr + cells, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(value_ptr + cells, mask=inside, other=0.0).to(tl.float32)
        receptance = tl.load(receptance_ptr + cells, mask=inside, other=0.0).to(tl.float32)
        now = key + bonus
        highest = tl.maximum(peak, now)
        earlier, own = tl.exp(peak - highest), tl.exp(now - highest)
        mean = (earlier * total + own * value) / (earlier * weight + own)
        gated = mean / (1.0 + tl.exp(-receptance))
        tl.store(out_ptr + cells, gated.to(out_ptr.dtype.element_ty), mask=inside)
        decayed = peak + log_decay
        peak = tl.maximum(decayed, key)
        remaining, entering = tl.exp(decayed - peak), tl.exp(key - peak)
        total = total * remaining + entering * value
        weight = weight * remaining + entering
    tl.store(total_ptr + entry, total, mask=owned)
    tl.store(weight_ptr + entry, weight, mask=owned)
    tl.store(peak_ptr + entry, peak, mask=owned)


def mix_wkv(
    layer: TimeMix, key: torch.Tensor, value: torch.Tensor, receptance: torch.Tensor, batch: ForwardBatch,
    state: LayerState,
) -> torch.Tensor:  # fmt: skip
    """``TimeMix.mix``: one launch for the decoding rows, and one for each chunk."""
    key, value, receptance = key.contiguous(), value.contiguous(), receptance.contiguous()
    out, channels, total = torch.empty_like(key), key.shape[1], state["wkv_state"]
    for run in batch_runs(batch):
        _mean[(run.num_sequences, triton.cdiv(channels, MEAN_TILE))](
            key, value, receptance, layer.log_decays(), layer.bonus, total, state["weight_state"], state["max_state"],
            total if run.slots is None else run.slots, out, run.start, run.length, run.slot,
            CHANNELS=channels, NOTHING=NOTHING, HAS_SLOTS=run.slots is not None, FRESH=run.fresh, TILE=MEAN_TILE,
            AHEAD=1 if run.slots is not None else ROWS_AHEAD, num_warps=1,
        )  # fmt: skip
    return out
