"""DynamicConv1d: sums by the definition, whatever the cuts between steps and the neighbours in a batch."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.dynamic_conv import DynamicConv1d

COUNT, SLOT = 9, 2


def make(width: int, kernel: int) -> DynamicConv1d:
    layer = DynamicConv1d(width, kernel, 0.5)
    layer.taps.data = torch.randn(width, kernel, generator=torch.Generator().manual_seed(1))
    return layer


def defined(layer: DynamicConv1d, rows: torch.Tensor, dynamic: torch.Tensor) -> torch.Tensor:
    """Channel by channel, tap by tap."""
    width, out = rows.shape[1], rows.clone()
    per_group = width // dynamic.shape[1]
    for at in range(len(rows)):
        for channel in range(width):
            for lag in range(min(layer.kernel_size, at + 1)):
                tap = layer.taps[channel, lag] + dynamic[at, channel // per_group, lag]
                out[at, channel] += tap * rows[at - lag, channel]
    return 0.5 * out


@pytest.mark.parametrize("pieces", [(9,), (1,) * 9, (2, 1, 1, 5), (4, 5)])
@pytest.mark.parametrize(("width", "groups", "kernel"), [(6, 2, 4), (4, 4, 2), (3, 1, 1)])
def test_sums_are_those_of_the_definition(width: int, groups: int, kernel: int, pieces: tuple[int, ...]) -> None:
    layer, generator = make(width, kernel), torch.Generator().manual_seed(2)
    rows = torch.randn(COUNT, width, generator=generator)
    dynamic = torch.randn(COUNT, groups, kernel, generator=generator)
    state, found, done = torch.full((4, width, kernel - 1), 7.0), [], 0
    for count in pieces:
        decodes = int(count == 1 and done > 0)
        chunks = () if decodes else (PrefillChunk(0, count, done, 0, SLOT),)
        zeros = torch.zeros(count, dtype=torch.int64)
        batch = ForwardBatch(zeros, zeros, zeros, torch.tensor([SLOT]), decodes, chunks)
        part = slice(done, done + count)
        found.append(layer(rows[part], dynamic[part], batch, state))
        done += count
    torch.testing.assert_close(torch.cat(found), defined(layer, rows, dynamic), rtol=1e-4, atol=1e-5)
    assert (state[[0, 1, 3]] == 7.0).all(), "another sequence's state was written"
    torch.testing.assert_close(state[SLOT], rows[COUNT - kernel + 1 :].T)


def test_decodes_and_chunks_of_one_step_do_not_mix() -> None:
    layer, generator = make(4, 3), torch.Generator().manual_seed(3)
    rows, dynamic = torch.randn(6, 4, generator=generator), torch.randn(6, 2, 3, generator=generator)
    tail = torch.randn(2, 4, generator=generator)
    state = torch.zeros(3, 4, 2)
    state[1] = tail.T
    zeros = torch.zeros(6, dtype=torch.int64)
    batch = ForwardBatch(zeros, zeros, zeros, torch.tensor([1, 2]), 1, (PrefillChunk(1, 6, 0, 1, 2),))
    found = layer(rows, dynamic, batch, state)
    behind = torch.cat((tail, rows[:1]))
    numbers = torch.cat((torch.zeros(2, 2, 3), dynamic[:1]))
    torch.testing.assert_close(found[:1], defined(layer, behind, numbers)[2:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1:], defined(layer, rows[1:], dynamic[1:]), rtol=1e-4, atol=1e-5)


def test_rows_keep_their_dtype() -> None:
    layer = make(4, 2)
    zeros = torch.zeros(3, dtype=torch.int64)
    batch = ForwardBatch(zeros, zeros, zeros, torch.tensor([0]), 0, (PrefillChunk(0, 3, 0, 0, 0),))
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(4)).bfloat16()
    found = layer(rows, torch.zeros(3, 2, 2, dtype=torch.bfloat16), batch, torch.zeros(1, 4, 1))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), defined(layer, rows.float(), torch.zeros(3, 2, 2)), rtol=1e-2, atol=1e-2)
