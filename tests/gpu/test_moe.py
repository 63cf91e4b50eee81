"""Routed experts: pairs of row and expert in tiles, and their products."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.compare import assert_close, experts_reference


@pytest.mark.parametrize("row_tile", [4, 16])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 8, 2), (13, 4, 2), (40, 7, 3), (3, 1, 1)])
def test_tiles_cover_every_pair_once(rows, experts, top_k, row_tile, device):
    from inference.modelling.backends.triton.moe import group_pairs

    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)])
    order, expert, start, stop = (part.cpu() for part in group_pairs(chosen.to(device), experts, row_tile))
    assert sorted(order.tolist()) == list(range(rows * top_k))
    covered = []
    for number, first, last in zip(expert.tolist(), start.tolist(), stop.tolist(), strict=True):
        assert 0 <= last - first <= row_tile
        for place in range(first, last):
            assert int(chosen.flatten()[order[place]]) == number
            covered.append(place)
    assert sorted(covered) == list(range(rows * top_k))


@pytest.mark.parametrize(("activation", "gated"), [("silu", True), ("gelu_tanh", True), ("relu2", False)])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 8, 3), (30, 4, 2), (70, 2, 2)])
def test_experts(rows, experts, top_k, activation, gated, dtype, device):
    from inference.modelling.backends.triton.moe import run_experts

    width, inner = 40, 72
    hidden = torch.randn(rows, width).to(dtype)
    first = (torch.randn(experts, (2 if gated else 1) * inner, width) * width**-0.5).to(dtype)
    down = (torch.randn(experts, width, inner) * inner**-0.5).to(dtype)
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)])
    weights = torch.rand(rows, top_k)
    found = run_experts(
        *(part.to(device) for part in (hidden, weights, chosen, first, down)), gated=gated, activation=activation
    )
    wanted = experts_reference(hidden, weights, chosen, first, down, activation=activation, gated=gated)
    assert_close(found, wanted, dtype)
