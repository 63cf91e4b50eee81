"""The causal convolution against its sum, whatever the cuts between steps."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.conv import AddedConv1d, CausalConv1d

WIDTH, SLOTS = 5, 4


def make(kernel: int, *, bias: bool = True, dilation: int = 1) -> CausalConv1d:
    conv = CausalConv1d(WIDTH, kernel, bias=bias, activation="silu", dilation=dilation)
    generator = torch.Generator().manual_seed(1)
    for parameter in conv.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return conv


def step(count: int, slot: int, context: int) -> ForwardBatch:
    """One sequence's next rows: a decode, or a chunk."""
    zeros, decodes = torch.zeros(count, dtype=torch.int64), int(count == 1 and context > 0)
    chunk = PrefillChunk(0, count, context, 0, slot)
    return ForwardBatch(zeros, zeros, zeros, torch.tensor([slot]), decodes, () if decodes else (chunk,))


def defined(conv: CausalConv1d, rows: torch.Tensor) -> torch.Tensor:
    """The sum for each row and channel."""
    kernel = conv.kernel_size
    padded = torch.cat((torch.zeros(kernel - 1, WIDTH), rows))
    taps = conv.weight[:, 0]  # (C, K)
    sums = torch.stack([(padded[at : at + kernel].T * taps).sum(1) for at in range(len(rows))])
    sums = sums if conv.bias is None else sums + conv.bias
    return sums * sums.sigmoid()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel", [1, 2, 4])
@pytest.mark.parametrize("pieces", [(9,), (1, 1, 7), (4, 1, 1, 3)])
def test_it_is_the_sum_whatever_the_cuts(kernel, bias, pieces):
    conv = make(kernel, bias=bias)
    rows = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(2))
    state, done, parts = torch.full((SLOTS, WIDTH, kernel - 1), 7.0), 0, []
    for count in pieces:
        parts.append(conv(rows[done : done + count], step(count, 2, done), state))
        done += count
    torch.testing.assert_close(torch.cat(parts), defined(conv, rows))
    torch.testing.assert_close(state[2], rows[9 - (kernel - 1) :].T)
    assert (state[[0, 1, 3]] == 7.0).all(), "another sequence's tail was written"


def test_taps_follow_the_weight():
    conv = make(3)
    first = conv.taps()
    assert conv.taps() is first and torch.equal(first, conv.weight[:, 0].T)
    conv.weight = torch.nn.Parameter(conv.weight * 2, requires_grad=False)
    torch.testing.assert_close(conv.taps(), 2 * first)


@pytest.mark.parametrize("pieces", [(9,), (1, 1, 7), (4, 1, 1, 3)])
def test_taps_may_be_apart(pieces):
    conv, plain = make(3, dilation=2), make(5)
    plain.weight.zero_()
    plain.weight[:, :, ::2] = conv.weight
    plain.bias.copy_(conv.bias)
    rows = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(2))
    state, done, parts = torch.full((SLOTS, WIDTH, 4), 7.0), 0, []
    for count in pieces:
        parts.append(conv(rows[done : done + count], step(count, 2, done), state))
        done += count
    torch.testing.assert_close(torch.cat(parts), defined(plain, rows))
    assert torch.equal(conv.taps(), plain.taps())


def test_an_added_convolution_adds_its_input_in_float32():
    conv = AddedConv1d(WIDTH, 3)
    conv.conv1d.weight.data = torch.randn(WIDTH, 1, 3, generator=torch.Generator().manual_seed(1))
    rows = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    found = conv(rows, step(9, 2, 0), torch.full((SLOTS, WIDTH, 2), 7.0))
    padded = torch.cat((torch.zeros(2, WIDTH), rows.float()))
    sums = torch.stack([(padded[at : at + 3].T * conv.conv1d.weight[:, 0]).sum(1) for at in range(9)])
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), rows.float() + sums, rtol=1e-2, atol=1e-2)
