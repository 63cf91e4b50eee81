"""The delta rule: one row of many sequences, and the rows of one, with a decay per head or per key channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from inference.modelling.forward_batch import PrefillChunk
from inference.modelling.layers.gated_delta import delta_scan, unit
from inference.modelling.layers.kimi_delta import channel_delta_scan
from tests.gpu.compare import assert_close

if TYPE_CHECKING:
    from inference.modelling.backends.triton.delta import DeltaRows

SHAPES = [(1, 1, 16, 16), (2, 4, 12, 20), (1, 3, 100, 8)]
"""Key heads, value heads, their widths; the last two aren't powers of 2."""


class Case:
    """Random rows as the convolution leaves them, and gates."""

    def __init__(self, count: int, shape: tuple[int, int, int, int], by_channel: bool) -> None:
        self.shape = shape
        key_heads, heads, key_width, width = shape
        self.widths = [key_heads * key_width, key_heads * key_width, heads * width]
        self.rows = torch.randn(count, sum(self.widths))
        self.beta = torch.rand(count, heads) * 2
        decays = (count, heads, key_width) if by_channel else (count, heads)
        self.log_decay = -torch.rand(decays) * torch.tensor([0.01, 3.0])[torch.randint(0, 2, decays)]

    def wanted(self, rows: slice, state: torch.Tensor) -> torch.Tensor:
        """By the layers' own functions; ``state`` (H, P, V) advances."""
        key_heads, heads, key_width, width = self.shape
        query, key, value = self.rows[rows].split(self.widths, 1)
        query, key = (unit(part.reshape(-1, key_heads, key_width)) for part in (query, key))
        query, key = (part.repeat_interleave(heads // key_heads, 1) for part in (query, key))
        scan = channel_delta_scan if self.log_decay.dim() == 3 else delta_scan
        value = value.reshape(-1, heads, width)
        return scan(query * key_width**-0.5, key, value, self.beta[rows], self.log_decay[rows], state)

    def moved(self, device: torch.device, pool: torch.Tensor, *, exact: bool = True) -> DeltaRows:
        from inference.modelling.backends.triton.delta import DeltaRows

        parts = self.rows.to(device).split(self.widths, 1)
        key_heads, heads, _, width = self.shape
        out = torch.full((len(self.rows), heads, width), torch.nan, device=device)
        return DeltaRows(*parts, self.beta.to(device), self.log_decay.to(device), pool, key_heads, out, exact)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_row_of_each_sequence(shape, by_channel, device):
    case = Case(3, shape, by_channel)
    _, heads, key_width, width = shape
    pool = torch.randn(5, heads, key_width, width)
    pool[0] = 0
    moved, slots = pool.clone().to(device), [3, 0, 1]
    rows = case.moved(device, moved)
    rows.decode(torch.tensor(slots, device=device))
    for row, slot in enumerate(slots):
        entry = pool[slot].clone()
        assert_close(rows.out[row], case.wanted(slice(row, row + 1), entry)[0], torch.float32)
        if slot:
            assert_close(moved[slot], entry, torch.float32)
    assert torch.equal(moved[[0, 2, 4]].cpu(), pool[[0, 2, 4]])


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("length", "fresh"), [(1, True), (23, False), (70, True)])
def test_the_rows_of_a_chunk(shape, length, fresh, by_channel, device):
    case = Case(length + 2, shape, by_channel)  # a row before the chunk, and one behind it
    _, heads, key_width, width = shape
    pool = torch.randn(3, heads, key_width, width)
    moved = pool.clone().to(device)
    rows = case.moved(device, moved)
    rows.prefill(PrefillChunk(1, 1 + length, 0 if fresh else 9, 0, 2))
    entry = torch.zeros_like(pool[2]) if fresh else pool[2].clone()
    assert_close(rows.out[1:-1], case.wanted(slice(1, 1 + length), entry), torch.float32)
    assert_close(moved[2], entry, torch.float32)
    assert torch.equal(moved[:2].cpu(), pool[:2]) and bool(rows.out[[0, -1]].isnan().all())


def in_pieces(case, device, *, length, fresh, exact=True, slot=2):
    """The rows of a chunk that is long enough for pieces, a row before it and one behind it, by both."""
    _, heads, key_width, width = case.shape
    pool = torch.randn(3, heads, key_width, width)
    moved = pool.clone().to(device)
    rows = case.moved(device, moved, exact=exact)
    rows.prefill(PrefillChunk(1, 1 + length, 0 if fresh else 9, 0, slot))
    entry = torch.zeros_like(pool[2]) if fresh or not slot else pool[slot].clone()
    wanted = case.wanted(slice(1, 1 + length), entry)
    tolerance = torch.float32 if exact else torch.float16
    assert_close(rows.out[1:-1], wanted, tolerance)
    assert bool(rows.out[[0, -1]].isnan().all())
    if slot:
        assert_close(moved[slot], entry, tolerance)
        pool[slot] = moved[slot].cpu()
    assert torch.equal(moved.cpu(), pool)


@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.device_only)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("length", "fresh"), [(32, False), (64, True), (131, False)])
def test_long_chunks_in_pieces(shape, length, fresh, exact, device):
    in_pieces(Case(length + 2, shape, by_channel=False), device, length=length, fresh=fresh, exact=exact)


def test_pieces_neither_read_nor_write_slot_0(device):
    in_pieces(Case(72, SHAPES[0], by_channel=False), device, length=70, fresh=False, slot=0)


@pytest.mark.parametrize("decay", [0.0, -40.0, -1e4, -torch.inf])
def test_decays_of_pieces_may_be_extreme(decay, device):
    """Nothing is forgotten, much, or everything, by some rows of a piece or by all of it."""
    case = Case(132, SHAPES[1], by_channel=False)
    case.log_decay[40:] = torch.where(torch.rand(92, 4) < 0.5, decay, -1e-3)
    case.log_decay[70:] = decay
    in_pieces(case, device, length=130, fresh=False)


def test_pieces_of_rows_that_are_alike(device):
    """Each row overwrites what the last one wrote: products of A grow without bound, its inverse has two diagonals."""
    case = Case(72, SHAPES[0], by_channel=False)
    case.rows[:, : sum(case.widths[:2])] = case.rows[0, : sum(case.widths[:2])]
    case.beta.fill_(1.0)
    case.log_decay.zero_()
    in_pieces(case, device, length=70, fresh=False)
