"""Long chunks of the delta rule, in pieces: odd lengths, extreme decays, rows that are alike."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import PrefillChunk
from tests.gpu.compare import assert_close
from tests.gpu.delta_case import DELTA_SHAPES, DeltaCase


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
@pytest.mark.parametrize("shape", DELTA_SHAPES)
@pytest.mark.parametrize(("length", "fresh"), [(32, False), (64, True), (131, False)])
def test_long_chunks_in_pieces(shape, length, fresh, exact, device):
    in_pieces(DeltaCase(length + 2, shape, by_channel=False), device, length=length, fresh=fresh, exact=exact)


def test_pieces_neither_read_nor_write_slot_0(device):
    in_pieces(DeltaCase(72, DELTA_SHAPES[0], by_channel=False), device, length=70, fresh=False, slot=0)


@pytest.mark.parametrize("decay", [0.0, -40.0, -1e4, -torch.inf])
def test_decays_of_pieces_may_be_extreme(decay, device):
    """Nothing is forgotten, much, or everything, by some rows of a piece or by all of it."""
    case = DeltaCase(132, DELTA_SHAPES[1], by_channel=False)
    case.log_decay[40:] = torch.where(torch.rand(92, 4) < 0.5, decay, -1e-3)
    case.log_decay[70:] = decay
    in_pieces(case, device, length=130, fresh=False)


def test_pieces_of_rows_that_are_alike(device):
    """Each row overwrites what the last one wrote: products of A grow without bound, its inverse has two diagonals."""
    case = DeltaCase(72, DELTA_SHAPES[0], by_channel=False)
    case.rows[:, : sum(case.widths[:2])] = case.rows[0, : sum(case.widths[:2])]
    case.beta.fill_(1.0)
    case.log_decay.zero_()
    in_pieces(case, device, length=70, fresh=False)


def test_a_decay_that_is_no_number_shows(device):
    """The rows behind it are no numbers either, so that the request fails instead of going on with another text."""
    case = DeltaCase(72, DELTA_SHAPES[0], by_channel=False)
    case.log_decay[20] = torch.nan
    _, heads, key_width, width = case.shape
    rows = case.moved(device, torch.randn(3, heads, key_width, width).to(device), exact=True)
    rows.prefill(PrefillChunk(1, 71, 9, 0, 2))
    assert bool(rows.out[20:71].isnan().all())
