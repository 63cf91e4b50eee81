# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Attention of one new token per sequence over the paged cache, blocks read in place.

One kernel serves grouped-query attention and absorbed MLA, which is attention with one key/value head whose
values are the first columns of its keys. The context of a sequence is cut into a fixed number of parts that run
side by side (flash decoding) and are merged by a second kernel. How a context is cut depends on its own length
and on the model alone, never on the batch, so that a sequence gets the same sums in any company; and the grid
depends on the number of rows alone, so that a captured graph fits contexts of any length.

Shape letters: D decoding sequences, H query heads, V key/value heads, G = H/V, P width of q and k, W width of v,
S parts of a context.

Source: Dao et al. 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html (the cut); Milakov and
Gimelshein 2018, https://arxiv.org/abs/1805.02867 (the running softmax). Reference: ``layers.attention.attend``,
``layers.mla.expanded_attention``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inference.modelling.forward_batch import AttentionMetadata

TARGET_PROGRAMS = 256
"""Programs that one sequence alone is cut into at most: about two for each multiprocessor of a large GPU."""

MAX_PARTS = 64
HEAD_TILE = 16
"""Query heads that one program takes: the fewest rows that the matrix units multiply."""


@triton.jit
def _attend_part(
    query_ptr, rope_ptr, key_ptr, value_ptr, blocks_ptr, starts_ptr, lengths_ptr, mixed_ptr, sums_ptr,
    scale, softcap,
    query_row, query_head, rope_row, rope_head, key_slot, key_head, value_slot, value_head,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, ROPE: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PARTS: tl.constexpr, WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    SHARED_VALUES: tl.constexpr, HEAD_TILE: tl.constexpr, TILE: tl.constexpr,
    WIDTH_PADDED: tl.constexpr, ROPE_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of query heads of one sequence over one part of its context: mixed values and log of the sum."""
    row, head_tile, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles_per_group: tl.constexpr = (GROUP + HEAD_TILE - 1) // HEAD_TILE
    kv_head = head_tile // tiles_per_group
    in_group = (head_tile % tiles_per_group) * HEAD_TILE + tl.arange(0, HEAD_TILE)
    head_is_real = in_group < GROUP
    heads = kv_head * GROUP + in_group
    length = tl.load(lengths_ptr + row)
    first_seen = 0
    if WINDOW > 0:
        first_seen = tl.maximum(length - WINDOW, 0)
    # Parts begin at multiples of TILE counted from a multiple of TILE, whatever the window.
    base = first_seen // TILE * TILE
    tiles = tl.cdiv(length - base, TILE)
    tiles_each = tl.cdiv(tiles, PARTS)
    start = base + part * tiles_each * TILE
    stop = tl.minimum(start + tiles_each * TILE, length)
    out = (row.to(tl.int64) * HEADS + heads) * PARTS + part
    if start >= stop:
        # Most parts of a short context are empty: neither this one's values nor their place are touched.
        tl.store(sums_ptr + out, tl.full((HEAD_TILE,), -float("inf"), tl.float32), mask=head_is_real)
    else:
        columns = tl.arange(0, WIDTH_PADDED)
        value_columns = tl.arange(0, VALUE_PADDED)
        query = tl.load(
            query_ptr + row.to(tl.int64) * query_row + heads[:, None] * query_head + columns[None, :],
            mask=head_is_real[:, None] & (columns[None, :] < WIDTH), other=0.0,
        )  # fmt: skip
        if ROPE > 0:
            rope_columns = tl.arange(0, ROPE_PADDED)
            query_rope = tl.load(
                rope_ptr + row.to(tl.int64) * rope_row + heads[:, None] * rope_head + rope_columns[None, :],
                mask=head_is_real[:, None] & (rope_columns[None, :] < ROPE), other=0.0,
            )  # fmt: skip
        table = blocks_ptr + tl.load(starts_ptr + row)
        best = tl.full((HEAD_TILE,), -float("inf"), tl.float32)
        total = tl.zeros((HEAD_TILE,), tl.float32)
        mixed = tl.zeros((HEAD_TILE, VALUE_PADDED), tl.float32)
        for at in range(start, stop, TILE):
            positions = at + tl.arange(0, TILE)
            seen = (positions < stop) & (positions >= first_seen)
            numbers = tl.load(table + positions // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
            slots = numbers * BLOCK_SIZE + positions % BLOCK_SIZE
            key_rows = key_ptr + slots * key_slot + kv_head * key_head
            key = tl.load(
                key_rows[:, None] + columns[None, :], mask=seen[:, None] & (columns[None, :] < WIDTH), other=0.0
            )
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            if ROPE > 0:
                key_rope = tl.load(
                    key_rows[:, None] + WIDTH + rope_columns[None, :],
                    mask=seen[:, None] & (rope_columns[None, :] < ROPE), other=0.0,
                )  # fmt: skip
                scores += tl.dot(query_rope, tl.trans(key_rope), input_precision=PRECISION)
            scores = scores * scale
            if HAS_CAP:
                # tanh(u) = 2 / (1 + e^(-2u)) - 1
                scores = (2.0 / (1.0 + tl.exp(-2.0 * scores / softcap)) - 1.0) * softcap
            scores = tl.where(seen[None, :], scores, -float("inf"))
            new_best = tl.maximum(best, tl.max(scores, 1))
            # A tile that lies wholly before the window leaves -inf as the greatest score.
            finite = tl.where(new_best == -float("inf"), 0.0, new_best)
            weights = tl.exp(scores - finite[:, None])
            shrink = tl.exp(best - finite)
            total = total * shrink + tl.sum(weights, 1)
            if SHARED_VALUES:
                value = key
            else:
                value = tl.load(
                    value_ptr + (slots * value_slot + kv_head * value_head)[:, None] + value_columns[None, :],
                    mask=seen[:, None] & (value_columns[None, :] < VALUE_WIDTH), other=0.0,
                )  # fmt: skip
            mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
            best = new_best
        divisor = tl.where(total > 0.0, total, 1.0)
        tl.store(
            mixed_ptr + out[:, None] * VALUE_WIDTH + value_columns[None, :], mixed / divisor[:, None],
            mask=head_is_real[:, None] & (value_columns[None, :] < VALUE_WIDTH),
        )  # fmt: skip
        # A part of which nothing is seen weighs nothing: the logarithm of its sum is -inf.
        logs = tl.where(total > 0.0, best + tl.log(divisor), -float("inf"))
        tl.store(sums_ptr + out, logs, mask=head_is_real)


@triton.jit
def _merge_parts(
    mixed_ptr, sums_ptr, out_ptr, VALUE_WIDTH: tl.constexpr, PARTS: tl.constexpr, VALUE_PADDED: tl.constexpr
):
    """The parts of one head of one sequence, each weighted with its share of the softmax's sum."""
    head = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, PARTS)
    columns = tl.arange(0, VALUE_PADDED)
    inside = columns < VALUE_WIDTH
    logs = tl.load(sums_ptr + head * PARTS + parts)
    best = tl.max(logs, 0)
    shares = tl.exp(logs - tl.where(best == -float("inf"), 0.0, best))
    total = tl.sum(shares, 0)
    written = logs > -float("inf")
    mixed = tl.load(
        mixed_ptr + (head * PARTS + parts)[:, None] * VALUE_WIDTH + columns[None, :],
        mask=written[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    # A padding row of a captured batch has no context, and gets zeros.
    merged = tl.sum(mixed * shares[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + head * VALUE_WIDTH + columns, merged.to(out_ptr.dtype.element_ty), mask=inside)


def num_parts(num_kv_heads: int, group: int) -> int:
    """Parts that every context is cut into: a power of two that depends on the model alone."""
    programs = num_kv_heads * triton.cdiv(group, HEAD_TILE)
    parts: int = triton.next_power_of_2(max(1, TARGET_PROGRAMS // programs))
    return min(MAX_PARTS, parts)


def tile_positions(width: int, element_size: int) -> int:
    """Positions that a program reads at once: as many as keep the tile of keys near 16 KiB."""
    padded: int = triton.next_power_of_2(width)
    return max(16, min(64, (16 << 10) // (padded * element_size)))


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    contexts: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Grouped-query attention of one query per sequence.

    Args:
        query: (D, H, P), unit stride in the last axis.
        key_cache: (slots, V, P).
        value_cache: (slots, V, W), of the same dtype.
        contexts: Of the decodes, and of others after them; the new token's key and value are written already.
        scale: Factor of q·k.
        sliding_window: Positions seen, the new one included; None: all.
        softcap: cap · tanh(score / cap); None: off.

    Returns:
        (D, H, W), in the query's dtype.
    """
    return _launch(query, None, key_cache, value_cache, contexts, scale, sliding_window or 0, softcap)


def decode_latent_attention(
    query: torch.Tensor,
    query_rope: torch.Tensor,
    latent_cache: torch.Tensor,
    contexts: AttentionMetadata,
    *,
    scale: float,
) -> torch.Tensor:
    """Absorbed MLA: every cached row is key (all of it) and value (its first r columns) of all heads.

    Args:
        query: (D, H, r), multiplied into the space of the latents.
        query_rope: (D, H, R), rotated.
        latent_cache: (slots, r + R).
        contexts: Of the decodes, and of others after them.
        scale: Factor of q·k.

    Returns:
        (D, H, r) mixed latents.
    """
    rows = latent_cache.unsqueeze(1)
    return _launch(query, query_rope, rows, None, contexts, scale, 0, None)


def _launch(
    query: torch.Tensor,
    query_rope: torch.Tensor | None,
    keys: torch.Tensor,
    values: torch.Tensor | None,
    contexts: AttentionMetadata,
    scale: float,
    window: int,
    softcap: float | None,
) -> torch.Tensor:
    count, heads, width = query.shape
    kv_heads = keys.shape[1]
    value_width = width if values is None else values.shape[2]
    group, parts = heads // kv_heads, num_parts(kv_heads, heads // kv_heads)
    rope = query_rope if query_rope is not None else query
    value_rows = keys if values is None else values
    mixed = torch.empty(count, heads, parts, value_width, dtype=torch.float32, device=query.device)
    sums = torch.empty(count, heads, parts, dtype=torch.float32, device=query.device)
    out = torch.empty(count, heads, value_width, dtype=query.dtype, device=query.device)
    value_padded = max(16, triton.next_power_of_2(value_width))
    width_padded = max(16, triton.next_power_of_2(width))
    tile = tile_positions(width if query_rope is None else width + query_rope.shape[2], keys.element_size())
    _attend_part[(count, kv_heads * triton.cdiv(group, HEAD_TILE), parts)](
        query, rope, keys, value_rows, contexts.blocks, contexts.starts, contexts.lengths, mixed, sums,
        scale, 1.0 if softcap is None else softcap,
        query.stride(0), query.stride(1), rope.stride(0), rope.stride(1),
        keys.stride(0), keys.stride(1), value_rows.stride(0), value_rows.stride(1),
        HEADS=heads, GROUP=group, WIDTH=width, ROPE=0 if query_rope is None else query_rope.shape[2],
        VALUE_WIDTH=value_width, BLOCK_SIZE=contexts.block_size, PARTS=parts, WINDOW=window,
        HAS_CAP=softcap is not None, SHARED_VALUES=values is None, HEAD_TILE=HEAD_TILE, TILE=tile,
        WIDTH_PADDED=width_padded, ROPE_PADDED=16 if query_rope is None else
        max(16, triton.next_power_of_2(query_rope.shape[2])), VALUE_PADDED=value_padded,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=3,
    )  # fmt: skip
    _merge_parts[(count * heads,)](
        mixed, sums, out, VALUE_WIDTH=value_width, PARTS=parts, VALUE_PADDED=value_padded, num_warps=4
    )
    return out
