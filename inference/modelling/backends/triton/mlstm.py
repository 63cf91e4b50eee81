# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""mLSTM on the device: one row of many sequences, with gates and norm in one launch. Chunks are PyTorch's.

A program has one head of one sequence, because all columns of its memory share a divisor and a norm: it goes over the
memory's rows, some at once, and has the sum of their products at the end.

State slot 0 is read as zero and never written.

Shape letters: T rows, B decoding sequences, H heads, P width of a key, V width of a value.

Reference: ``layers.mlstm.mlstm_step``.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.activations import softplus
from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.mlstm import MLSTM

TILE_VALUES = 8192
"""Values of the memory that a program has at once: 32 for each of 256 threads."""


@triton.jit
def _cap(values, cap):
    """cap · tanh(x / cap)."""
    return cap * (2.0 / (1.0 + tl.exp(-2.0 * values / cap)) - 1.0)


@triton.jit
def _step(
    rows_ptr, gates_ptr, norm_ptr, memory_ptr, total_ptr, peak_ptr, slots_ptr, out_ptr, rows_row, gates_row,
    scale, cap, norm_eps, eps,
    HEADS: tl.constexpr, KEY_WIDTH: tl.constexpr, WIDTH: tl.constexpr,
    KEY_TILE: tl.constexpr, WIDTH_PADDED: tl.constexpr,
):  # fmt: skip
    """A row through one head: decay and input, then query, divisor, norm and output gate."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, WIDTH_PADDED)
    inside = columns < WIDTH
    slot = tl.load(slots_ptr + row)
    key_stop = tl.where(slot != 0, KEY_WIDTH, 0)
    entry = slot * HEADS + head
    rows_ptr += row * rows_row
    gates_ptr += row * gates_row
    write = _cap(tl.load(gates_ptr + head).to(tl.float32), cap)
    log_keep = -softplus(-_cap(tl.load(gates_ptr + HEADS + head).to(tl.float32), cap))
    before = tl.load(peak_ptr + entry, mask=slot != 0, other=0.0) + log_keep
    peak = tl.maximum(before, write)
    remaining, entering = tl.exp(before - peak), tl.exp(write - peak)
    value_ptr = rows_ptr + 2 * HEADS * KEY_WIDTH + head * WIDTH + columns
    value = tl.load(value_ptr, mask=inside, other=0.0).to(tl.float32)
    mixed = tl.zeros((WIDTH_PADDED,), tl.float32)
    products = tl.zeros((KEY_TILE,), tl.float32)
    for first in range(0, KEY_WIDTH, KEY_TILE):
        keys = first + tl.arange(0, KEY_TILE)
        in_keys, owned = keys < KEY_WIDTH, keys < key_stop
        query = tl.load(rows_ptr + head * KEY_WIDTH + keys, mask=in_keys, other=0.0).to(tl.float32) * scale
        key = tl.load(rows_ptr + (HEADS + head) * KEY_WIDTH + keys, mask=in_keys, other=0.0).to(tl.float32)
        written = entering * key
        cells = memory_ptr + (entry * KEY_WIDTH + keys)[:, None] * WIDTH + columns[None, :]
        ours = owned[:, None] & inside[None, :]
        memory = tl.load(cells, mask=ours, other=0.0) * remaining + written[:, None] * value[None, :]
        tl.store(cells, memory, mask=ours)
        mixed += tl.sum(memory * query[:, None], 0)
        totals = total_ptr + entry * KEY_WIDTH + keys
        total = tl.load(totals, mask=owned, other=0.0) * remaining + written
        # Several threads have the same sums: all have to have read them before one overwrites them.
        tl.debug_barrier()
        tl.store(totals, total, mask=owned)
        products += query * total
    mixed = mixed / (tl.maximum(tl.abs(tl.sum(products, 0)), tl.exp(-peak)) + eps)
    centred = tl.where(inside, mixed - tl.sum(mixed, 0) / WIDTH, 0.0)
    normed = centred / tl.sqrt_rn(tl.sum(centred * centred, 0) / WIDTH + norm_eps)
    normed *= tl.load(norm_ptr + head * WIDTH + columns, mask=inside, other=0.0)
    gate = tl.load(value_ptr + HEADS * WIDTH, mask=inside, other=0.0).to(tl.float32)
    gated = normed / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + (row * HEADS + head) * WIDTH + columns, gated.to(out_ptr.dtype.element_ty), mask=inside)
    tl.debug_barrier()
    tl.store(peak_ptr + entry, peak, mask=slot != 0)


def mix_mlstm(
    layer: MLSTM, projected: torch.Tensor, gates: torch.Tensor, batch: ForwardBatch, state: LayerState
) -> torch.Tensor:
    """``MLSTM.mix``: one launch for the decoding rows; chunks by the layer's own method."""
    spec = layer.spec
    if batch.prefills:
        out = MLSTM.mix(layer, projected, gates, replace(batch, num_decodes=0), state)
    else:
        out = torch.empty(projected.shape[0], spec.value_width, dtype=projected.dtype, device=projected.device)
    if batch.num_decodes:
        padded = triton.next_power_of_2(spec.value_head_dim)
        key_tile = max(1, min(triton.next_power_of_2(spec.key_head_dim), TILE_VALUES // padded))
        _step[(batch.num_decodes, spec.num_heads)](
            projected, gates, layer.norm.weight, state["memory_state"], state["norm_state"], state["max_state"],
            batch.decode_state_slots, out, projected.stride(0), gates.stride(0),
            spec.key_head_dim**-0.5, spec.gate_cap, spec.norm_eps, spec.eps,
            HEADS=spec.num_heads, KEY_WIDTH=spec.key_head_dim, WIDTH=spec.value_head_dim, KEY_TILE=key_tile,
            WIDTH_PADDED=padded, num_warps=max(1, min(8, key_tile * padded // 1024)),
        )  # fmt: skip
    return out
