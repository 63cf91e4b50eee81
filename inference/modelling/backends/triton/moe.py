# mypy: disable-error-code="untyped-decorator, no-untyped-def, misc"
"""Routed experts as two grouped products, without a word from the device.

The (row, expert) pairs are sorted by expert and cut into tiles of rows that share one; which expert a tile belongs
to is worked out on the device, and the grid has as many tiles as there could be, so that nothing is waited for and
a graph can capture it. The first product ends in the activation; the second writes each pair's result to its own
place, so that a row's experts are added in the row's order, whatever else is in the batch. Quantised stacks are
expanded inside the products.

Shape letters: T rows, h hidden, E experts, k experts of a row, f width of an expert, n = T·k pairs.

Reference: ``layers.moe.Experts``, ``MixtureOfExperts.reference``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from inference.modelling.backends.triton.activations import activate
from inference.modelling.backends.triton.coded import DeviceCoded, code_sums
from inference.modelling.backends.triton.quantised import EXPANSION, DeviceQuantised, tile_options, tile_sums

Stack = torch.Tensor | DeviceQuantised | DeviceCoded
"""Matrices of experts, one below the other."""


@triton.jit
def _grouped_product(
    rows_ptr, weight_ptr, scales_ptr, offsets_ptr, factors_ptr, levels_ptr, out_ptr, order_ptr, tile_expert_ptr,
    tile_start_ptr, tile_stop_ptr, expansion, rows_row,
    DIVISOR: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, GATED: tl.constexpr, KIND: tl.constexpr,
    SCATTER: tl.constexpr, CODED: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, HAS_OFFSET: tl.constexpr,
    FACTOR: tl.constexpr, ZERO: tl.constexpr,
    ROW_TILE: tl.constexpr, COLUMN_TILE: tl.constexpr, INNER_TILE: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of pairs times some columns of their expert's matrix (columns, inner).

    Pairs are gathered from ``order[pair] // DIVISOR`` (the hidden rows) or, with DIVISOR 0, lie in order. With CODED
    the weight is a ``DeviceCoded`` one; else, with BITS, a ``DeviceQuantised`` one, and INNER_TILE counts its words.
    """
    tile = tl.program_id(1)
    start, stop = tl.load(tile_start_ptr + tile), tl.load(tile_stop_ptr + tile)
    if start < stop:
        expert = tl.load(tile_expert_ptr + tile).to(tl.int64)
        pairs = start + tl.arange(0, ROW_TILE)
        real = pairs < stop
        numbers = tl.load(order_ptr + pairs, mask=real, other=0)
        if DIVISOR > 0:  # noqa: SIM108
            sources = numbers // DIVISOR
        else:
            sources = pairs.to(tl.int64)
        columns = tl.program_id(0) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        within = columns < COLUMNS
        first = expert * (COLUMNS * (2 if GATED else 1))
        total = tl.zeros((ROW_TILE, COLUMN_TILE), tl.float32)
        total_up = tl.zeros((ROW_TILE, COLUMN_TILE), tl.float32)
        if CODED:
            outputs = (first + columns)[:, None]
            places = rows_ptr + sources[None, :] * rows_row
            total = tl.trans(code_sums(
                places, real[None, :], weight_ptr, scales_ptr, offsets_ptr, factors_ptr, levels_ptr, outputs,
                within[:, None], INNER, BITS, GROUP, HAS_OFFSET, FACTOR, ZERO, ROW_TILE, COLUMN_TILE, INNER_TILE, PARTS,
                PRECISION,
            ))  # fmt: skip
            if GATED:
                total_up = tl.trans(code_sums(
                    places, real[None, :], weight_ptr, scales_ptr, offsets_ptr, factors_ptr, levels_ptr,
                    outputs + COLUMNS, within[:, None], INNER, BITS, GROUP, HAS_OFFSET, FACTOR, ZERO, ROW_TILE,
                    COLUMN_TILE, INNER_TILE, PARTS, PRECISION,
                ))  # fmt: skip
        elif BITS > 0:
            words: tl.constexpr = (INNER * BITS + 127) // 128 * 4
            groups: tl.constexpr = (INNER + GROUP - 1) // GROUP
            outputs = (first + columns)[:, None]
            places = rows_ptr + sources[None, :] * rows_row
            total = tl.trans(tile_sums(
                places, real[None, :], weight_ptr + outputs * words, scales_ptr + outputs * groups, within[:, None],
                expansion, INNER, BITS, GROUP, ROW_TILE, COLUMN_TILE, INNER_TILE, PARTS, PRECISION,
            ))  # fmt: skip
            if GATED:
                outputs += COLUMNS
                total_up = tl.trans(tile_sums(
                    places, real[None, :], weight_ptr + outputs * words, scales_ptr + outputs * groups, within[:, None],
                    expansion, INNER, BITS, GROUP, ROW_TILE, COLUMN_TILE, INNER_TILE, PARTS, PRECISION,
                ))  # fmt: skip
        else:
            inner = tl.arange(0, INNER_TILE)
            matrix = weight_ptr + first * INNER
            for at in range(0, INNER, INNER_TILE):
                known = at + inner < INNER
                rows = tl.load(
                    rows_ptr + sources[:, None] * rows_row + (at + inner)[None, :],
                    mask=real[:, None] & known[None, :], other=0.0,
                )  # fmt: skip
                cells = matrix + columns[None, :] * INNER + (at + inner)[:, None]
                mask = known[:, None] & within[None, :]
                total = tl.dot(rows, tl.load(cells, mask=mask, other=0.0), total, input_precision=PRECISION)
                if GATED:
                    up = tl.load(cells + COLUMNS * INNER, mask=mask, other=0.0)
                    total_up = tl.dot(rows, up, total_up, input_precision=PRECISION)
        if KIND != "none":
            total = activate(total, KIND)
        if GATED:
            total *= total_up
        if SCATTER:  # noqa: SIM108
            targets = numbers.to(tl.int64)
        else:
            targets = pairs.to(tl.int64)
        tl.store(
            out_ptr + targets[:, None] * COLUMNS + columns[None, :], total.to(out_ptr.dtype.element_ty),
            mask=real[:, None] & within[None, :],
        )  # fmt: skip


@triton.jit
def _weighted_sum(parts_ptr, weights_ptr, out_ptr, WIDTH: tl.constexpr, COUNT: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < WIDTH
    total = tl.zeros((TILE,), tl.float32)
    for part in range(COUNT):
        values = tl.load(parts_ptr + (row * COUNT + part) * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(weights_ptr + row * COUNT + part) * values
    tl.store(out_ptr + row * WIDTH + columns, total.to(out_ptr.dtype.element_ty), mask=inside)


def group_pairs(
    chosen: torch.Tensor, num_experts: int, row_tile: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort the pairs by expert and cut them into tiles; no value comes back from the device.

    Args:
        chosen: (T, k) int64 expert numbers.
        num_experts: E.
        row_tile: Most pairs of a tile.

    Returns:
        order: (n,) int64, pair numbers (row · k + place), expert by expert.
        expert, start, stop: (tiles,) int64 for each tile that there could be; start = stop: there is nothing in it.
    """
    flat = chosen.flatten()
    pairs = flat.shape[0]
    order = flat.sort(stable=True).indices
    counts = torch.zeros(num_experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    ends = counts.cumsum(0)
    tiles = (counts + row_tile - 1) // row_tile
    tile_ends = tiles.cumsum(0)
    # Every expert with a pair has at most one tile that isn't full.
    most = triton.cdiv(pairs, row_tile) + min(num_experts, pairs)
    numbers = torch.arange(most, device=flat.device)
    expert = torch.searchsorted(tile_ends, numbers, right=True).clamp_(max=num_experts - 1)
    stop = ends[expert]
    start = stop - counts[expert] + (numbers - tile_ends[expert] + tiles[expert]) * row_tile
    stop = torch.minimum(start + row_tile, stop)
    return order, expert, start, torch.maximum(start, stop)


def _operands(stack: Stack, dtype: torch.dtype, row_tile: int) -> tuple[Sequence[torch.Tensor], dict[str, Any]]:
    """What ``_grouped_product`` reads of a stack (one tensor five times, if it isn't quantised), and its options."""
    if isinstance(stack, DeviceCoded):
        options = stack.tile_options(row_tile, dtype) | stack.constants() | {"CODED": True}
        del options["INPUTS"]
        options["COLUMN_TILE"], options["INNER_TILE"] = options.pop("OUTPUT_TILE"), options.pop("INPUT_TILE")
        return stack.operands(), options
    if isinstance(stack, DeviceQuantised):
        options = tile_options(row_tile, dtype) | {"CODED": False, "HAS_OFFSET": False, "FACTOR": 0, "ZERO": None}
        options["COLUMN_TILE"], options["INNER_TILE"] = options.pop("OUTPUT_TILE"), options.pop("WORD_TILE")
        return (stack.words, *[stack.scales] * 4), options | {"BITS": stack.bits, "GROUP": stack.group}
    exact = dtype == torch.float32
    return [stack] * 5, {
        "CODED": False, "BITS": 0, "GROUP": 1, "PARTS": 1, "HAS_OFFSET": False, "FACTOR": 0, "ZERO": None,
        "ROW_TILE": row_tile, "COLUMN_TILE": 64,
        "INNER_TILE": 32 if exact else 64, "PRECISION": "ieee" if exact else "tf32", "num_warps": 4, "num_stages": 3,
    }  # fmt: skip


def run_experts(
    hidden: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    first: Stack,
    down: Stack,
    *,
    gated: bool,
    activation: str,
) -> torch.Tensor:
    """Weighted sum of each row's experts.

    Args:
        hidden: (T, h), unit stride in the last axis.
        weights: (T, k) float32, contiguous.
        chosen: (T, k) int64.
        first: (E, 2f, h) gate then up, or (E, f, h) without gate.
        down: (E, h, f); likewise.
        gated: Which of both.
        activation: By name.

    Returns:
        (T, h), in the dtype of ``hidden``.
    """
    rows, top_k = chosen.shape
    experts, width, inner = down.shape
    pairs = rows * top_k
    row_tile = 64 if pairs >= 32 * experts else 16
    order, expert, start, stop = group_pairs(chosen, experts, row_tile)
    operands, options = _operands(first, hidden.dtype, row_tile)
    activated = torch.empty(pairs, inner, dtype=hidden.dtype, device=hidden.device)
    _grouped_product[(triton.cdiv(inner, options["COLUMN_TILE"]), expert.shape[0])](
        hidden, *operands, activated, order, expert, start, stop, EXPANSION, hidden.stride(0),
        DIVISOR=top_k, INNER=width, COLUMNS=inner, GATED=gated, KIND=activation, SCATTER=False, **options,
    )  # fmt: skip
    operands, options = _operands(down, hidden.dtype, row_tile)
    parts = torch.empty(pairs, width, dtype=hidden.dtype, device=hidden.device)
    _grouped_product[(triton.cdiv(width, options["COLUMN_TILE"]), expert.shape[0])](
        activated, *operands, parts, order, expert, start, stop, EXPANSION, inner,
        DIVISOR=0, INNER=inner, COLUMNS=width, GATED=False, KIND="none", SCATTER=True, **options,
    )  # fmt: skip
    out = torch.empty(rows, width, dtype=hidden.dtype, device=hidden.device)
    _weighted_sum[(rows, triton.cdiv(width, 1024))](
        parts, weights, out, WIDTH=width, COUNT=top_k, TILE=1024, num_warps=4
    )
    return out
