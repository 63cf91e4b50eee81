# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""RG-LRU on the device: gates, recurrence and the product with the other branch in one launch.

The convolution before it is ``conv``; the products with the gates' blocks are PyTorch's. A program has some channels
of one sequence and goes through its rows one after the other; the loads of later rows are on their way meanwhile.

State slot 0 is read as zero and never written.

Shape letters: T rows, W channels.

Reference: ``layers.rg_lru.RGLRU``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.activations import activate
from inference.modelling.backends.triton.runs import batch_runs, state_slot
from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.rg_lru import RGLRU

TILE = 64
"""Channels of a program of one warp: two for each thread, so that bfloat16 rows are loaded four bytes at a time."""
ROWS_AHEAD = 4
"""Rows of a chunk that are loaded at once."""


@triton.jit(do_not_specialize=["start", "length", "slot"])
def _recur(
    values_ptr, enter_ptr, keep_ptr, branch_ptr, strengths_ptr, pool_ptr, slots_ptr, out_ptr,
    start, length, slot, branch_row,
    CHANNELS: tl.constexpr, HAS_SLOTS: tl.constexpr, FRESH: tl.constexpr, KIND: tl.constexpr,
    TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """``length`` rows of some channels of one sequence."""
    sequence = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channels < CHANNELS
    slot = state_slot(slots_ptr, slot, sequence, HAS_SLOTS)
    owned = channels < tl.where(slot != 0, CHANNELS, 0)
    entry = pool_ptr + slot * CHANNELS + channels
    if FRESH:  # noqa: SIM108
        state = tl.zeros((TILE,), tl.float32)
    else:
        state = tl.load(entry, mask=owned, other=0.0)
    strength = tl.load(strengths_ptr + channels, mask=inside, other=0.0)
    for number in tl.range(0, length, num_stages=AHEAD):
        row = start + sequence * length + number
        cells = row * CHANNELS + channels
        value = tl.load(values_ptr + cells, mask=inside, other=0.0)
        enter = tl.load(enter_ptr + cells, mask=inside, other=0.0)
        keep = tl.load(keep_ptr + cells, mask=inside, other=0.0)
        branch = tl.load(branch_ptr + row * branch_row + channels, mask=inside, other=0.0).to(tl.float32)
        log_decay = strength / (1.0 + tl.exp(-keep))
        # The device's exponential is rounded upwards too: 1 minus it can be less than 0.
        share = tl.sqrt(tl.maximum(1.0 - tl.exp(2.0 * log_decay), 0.0))
        if FRESH:
            share = tl.where(number == 0, 1.0, share)  # a sequence's first input enters as a whole
        state = tl.exp(log_decay) * state + share * value / (1.0 + tl.exp(-enter))
        mixed = activate(branch, KIND) * state
        tl.store(out_ptr + cells, mixed.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(entry, state, mask=owned)


def mix_rg_lru(layer: RGLRU, projected: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
    """``RGLRU.mix``: one launch for the decoding rows, and one for each chunk, behind convolution and products."""
    width, pool = layer.spec.width, state["lru_state"]
    values = layer.conv1d(projected[:, width:], batch, state["conv_state"])
    enter, keep = layer.input_gate(values).contiguous(), layer.decay_gate(values).contiguous()
    out = torch.empty(values.shape, dtype=projected.dtype, device=projected.device)
    for run in batch_runs(batch):
        _recur[(run.num_sequences, triton.cdiv(width, TILE))](
            values, enter, keep, projected, layer.strengths(), pool, pool if run.slots is None else run.slots, out,
            run.start, run.length, run.slot, projected.stride(0),
            CHANNELS=width, HAS_SLOTS=run.slots is not None, FRESH=run.fresh, KIND=layer.spec.activation, TILE=TILE,
            AHEAD=1 if run.slots is not None else ROWS_AHEAD, num_warps=1,
        )  # fmt: skip
    return out
