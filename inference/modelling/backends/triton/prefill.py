# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Attention of a chunk's queries over the paged cache, rows read in place.

For what a library's fused attention can't do without a matrix of masks and a copy of the context: later chunks of a
prompt, windows, capped scores. One program takes some queries of one head and passes over the keys that they see.

Shape letters: n queries of the chunk, H query heads, V key/value heads, P width of q and k.

Source: Dao 2023, https://arxiv.org/abs/2307.08691 (one pass over the keys for a tile of queries). Reference:
``layers.attention.attend``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.attention import tile_positions


@triton.jit(do_not_specialize=["count", "context"], do_not_specialize_on_alignment=["starts_ptr"])
def _attend_chunk(
    query_ptr, key_ptr, value_ptr, blocks_ptr, starts_ptr, out_ptr, scale, softcap, count, context,
    query_row, query_head, key_slot, key_head, value_slot, value_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROW_TILE: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Some queries of one head."""
    head = tl.program_id(1)
    kv_head = head // GROUP
    rows = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    real = rows < count
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    query = tl.load(
        query_ptr + rows.to(tl.int64)[:, None] * query_row + head * query_head + columns[None, :],
        mask=real[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    own = context + rows
    table = blocks_ptr + tl.load(starts_ptr)
    first = 0
    if WINDOW > 0:
        # Nothing before the window of the first of these queries is seen by any.
        first = tl.maximum(context + tl.program_id(0) * ROW_TILE - WINDOW + 1, 0) // TILE * TILE
    stop = context + tl.minimum((tl.program_id(0) + 1) * ROW_TILE, count)
    best = tl.full((ROW_TILE,), -float("inf"), tl.float32)
    total = tl.zeros((ROW_TILE,), tl.float32)
    mixed = tl.zeros((ROW_TILE, PADDED), tl.float32)
    for at in range(first, stop, TILE):
        positions = at + tl.arange(0, TILE)
        known = positions < stop
        numbers = tl.load(table + positions // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        slots = numbers * BLOCK_SIZE + positions % BLOCK_SIZE
        loaded = known[:, None] & inside[None, :]
        key = tl.load(key_ptr + (slots * key_slot + kv_head * key_head)[:, None] + columns[None, :], loaded, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        if HAS_CAP:
            # tanh(u) = 2 / (1 + e^(-2u)) - 1
            scores = (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0) * softcap
        seen = positions[None, :] <= own[:, None]
        if WINDOW > 0:
            seen = seen & (positions[None, :] > own[:, None] - WINDOW)
        scores = tl.where(seen & known[None, :], scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A tile that lies wholly before a query's window leaves -inf as its greatest score.
        finite = tl.where(new_best == -float("inf"), 0.0, new_best)
        weights = tl.exp(scores - finite[:, None])
        shrink = tl.exp(best - finite)
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(
            value_ptr + (slots * value_slot + kv_head * value_head)[:, None] + columns[None, :], loaded, other=0.0
        )
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        best = new_best
    mixed = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(
        out_ptr + (rows.to(tl.int64)[:, None] * HEADS + head) * WIDTH + columns[None, :],
        mixed.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :],
    )  # fmt: skip


def chunk_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    start: torch.Tensor,
    context_len: int,
    block_size: int,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Causal grouped-query attention of a sequence's last n tokens.

    Args:
        query: (n, H, P), unit stride in the last axis.
        key_cache, value_cache: (slots, V, P); the chunk's own rows are written already.
        blocks: int32 block numbers, as in ``AttentionMetadata``.
        start: (1,) int64, where the sequence's begin.
        context_len: Tokens before the chunk.
        block_size: Tokens in one block.
        scale: Factor of q·k.
        sliding_window: Positions seen, the query's own included; None: all.
        softcap: cap · tanh(score / cap); None: off.

    Returns:
        (n, H, P), in the query's dtype.
    """
    count, heads, width = query.shape
    assert value_cache.shape[2] == width, "keys and values have one width"
    out = torch.empty(count, heads, width, dtype=query.dtype, device=query.device)
    padded = max(16, triton.next_power_of_2(width))
    row_tile = 64 if query.element_size() == 2 else 32
    _attend_chunk[(triton.cdiv(count, row_tile), heads)](
        query, key_cache, value_cache, blocks, start, out, scale, 1.0 if softcap is None else softcap,
        count, context_len,
        query.stride(0), query.stride(1), key_cache.stride(0), key_cache.stride(1),
        value_cache.stride(0), value_cache.stride(1),
        HEADS=heads, GROUP=heads // key_cache.shape[1], WIDTH=width, PADDED=padded, WINDOW=sliding_window or 0,
        HAS_CAP=softcap is not None, BLOCK_SIZE=block_size, ROW_TILE=row_tile,
        TILE=tile_positions(width, query.element_size()), PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4 if padded <= 128 else 8, num_stages=2,
    )  # fmt: skip
    return out
