"""Mamba-2: the recurrence of one token, and of a chunk."""

from __future__ import annotations

import math

import pytest
import torch

from inference.modelling.layers.recurrent import step_sizes
from tests.gpu.compare import assert_close
from tests.inference.modelling.sequential_scans import ssd_scan_sequential

RANGES = [(0.0, math.inf), (0.01, 0.2)]


class Case:
    """Random inputs of the recurrence: L tokens, H heads of width P, state S, G groups."""

    def __init__(self, length: int, heads: int, width: int, size: int, groups: int, dt_range: tuple[float, float]):
        self.shape = (heads, width, size, groups)
        inner, bc = heads * width, groups * size
        self.xbc = torch.randn(length, inner + 2 * bc)
        self.dt = torch.randn(length, heads + 3)[:, :heads] * 3
        self.dt_bias, self.skip = torch.randn(heads) - 2, torch.randn(heads)
        self.rates = -torch.rand(heads) * 8
        self.range = dt_range

    def wanted(self, rows: slice, state: torch.Tensor) -> torch.Tensor:
        """By the plain loop over tokens in float64; ``state`` (H, P, S) advances."""
        heads, width, size, groups = self.shape
        x, b, c = self.xbc[rows].double().split([heads * width, groups * size, groups * size], 1)
        x = x.unflatten(1, (heads, width))
        delta = step_sizes(self.dt[rows], self.dt_bias, *self.range).double()
        y = ssd_scan_sequential(
            x * delta.unsqueeze(2),
            delta * self.rates.double(),
            b.unflatten(1, (groups, size)),
            c.unflatten(1, (groups, size)),
            state,
        )
        return (y + x * self.skip.double().unsqueeze(1)).flatten(1)

    def moved(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        return tuple(part.to(device) for part in (self.xbc, self.dt, self.dt_bias, self.rates, self.skip))


SHAPES = [(4, 8, 16, 2), (2, 20, 12, 1), (3, 64, 128, 3)]


@pytest.mark.parametrize("dt_range", RANGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_state_step(shape, dt_range, device):
    from inference.modelling.backends.triton.mamba2 import state_step

    heads, width, size, groups = shape
    case = Case(3, *shape, dt_range)
    pool = torch.randn(5, heads, width, size)
    pool[0] = 0
    moved = pool.clone().to(device)
    slots = [3, 0, 1]
    found = state_step(
        *case.moved(device), moved, torch.tensor(slots, device=device),
        num_groups=groups, dt_min=dt_range[0], dt_max=dt_range[1],
    )  # fmt: skip
    for row, slot in enumerate(slots):
        entry = pool[slot].double()
        assert_close(found[row], case.wanted(slice(row, row + 1), entry)[0], torch.float32)
        if slot:
            assert_close(moved[slot], entry, torch.float32)
    assert torch.equal(moved[[0, 2, 4]].cpu(), pool[[0, 2, 4]])


@pytest.mark.parametrize("dt_range", RANGES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("length", "fresh"), [(1, True), (64, False), (150, True), (70, False)])
def test_chunk_scan(shape, length, fresh, dt_range, device):
    from inference.modelling.backends.triton.mamba2 import chunk_scan

    heads, width, size, groups = shape
    case = Case(length, *shape, dt_range)
    state = torch.randn(heads, width, size)
    moved = state.clone().to(device)
    out = torch.full((length, heads * width), torch.nan, device=device)
    chunk_scan(
        *case.moved(device), moved, out,
        num_groups=groups, dt_min=dt_range[0], dt_max=dt_range[1], fresh=fresh, exact=True,
    )  # fmt: skip
    entry = torch.zeros_like(state).double() if fresh else state.double()
    assert_close(out, case.wanted(slice(0, length), entry), torch.float32)
    assert_close(moved, entry, torch.float32)


def test_step_sizes_keep_their_digits(device):
    """softplus of very negative values is e^x; a plain log(1 + e^x) would lose it."""
    from inference.modelling.backends.triton.mamba2 import state_step

    dt = torch.tensor([[-16.0], [-8.0], [-1.0], [0.0], [19.0], [30.0]])
    xbc = torch.ones(6, 3)  # one channel of x, B and C each
    pool = torch.zeros(7, 1, 1, 1)
    found = state_step(
        xbc.to(device), dt.to(device), torch.zeros(1, device=device), torch.zeros(1, device=device),
        torch.zeros(1, device=device), pool.to(device), torch.arange(1, 7, device=device),
        num_groups=1, dt_min=0.0, dt_max=math.inf,
    )  # fmt: skip
    torch.testing.assert_close(found.cpu(), torch.nn.functional.softplus(dt.double()).float(), rtol=1e-6, atol=0)
