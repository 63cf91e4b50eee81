"""The delta rule: one row of many sequences, and the rows of one, with a decay per head or per key channel."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import PrefillChunk
from tests.gpu.compare import assert_close
from tests.gpu.delta_case import DELTA_SHAPES, DeltaCase


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("shape", DELTA_SHAPES)
def test_one_row_of_each_sequence(shape, by_channel, device):
    case = DeltaCase(3, shape, by_channel)
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
@pytest.mark.parametrize("shape", DELTA_SHAPES)
@pytest.mark.parametrize(("length", "fresh"), [(1, True), (23, False), (70, True)])
def test_the_rows_of_a_chunk(shape, length, fresh, by_channel, device):
    case = DeltaCase(length + 2, shape, by_channel)  # a row before the chunk, and one behind it
    _, heads, key_width, width = shape
    pool = torch.randn(3, heads, key_width, width)
    moved = pool.clone().to(device)
    rows = case.moved(device, moved)
    rows.prefill(PrefillChunk(1, 1 + length, 0 if fresh else 9, 0, 2))
    entry = torch.zeros_like(pool[2]) if fresh else pool[2].clone()
    assert_close(rows.out[1:-1], case.wanted(slice(1, 1 + length), entry), torch.float32)
    assert_close(moved[2], entry, torch.float32)
    assert torch.equal(moved[:2].cpu(), pool[:2]) and bool(rows.out[[0, -1]].isnan().all())
