"""Causal convolutions: one token of many sequences, a chunk of one, and a batch of both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.conv import CausalConv1d
from tests.gpu.compare import assert_close


def make_conv(width: int, taps: int, bias: bool, activation: str | None) -> CausalConv1d:
    conv = CausalConv1d(width, taps, bias=bias, activation=activation)
    conv.weight.copy_(torch.randn(width, 1, taps))
    if conv.bias is not None:
        conv.bias.copy_(torch.randn(width))
    return conv


def batch_of(num_decodes: int, slots: list[int], prefills: tuple[PrefillChunk, ...]) -> ForwardBatch:
    empty = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(empty, empty, empty, torch.tensor(slots), num_decodes, prefills)


@pytest.mark.parametrize(
    ("taps", "bias", "activation"), [(4, True, "silu"), (2, False, "gelu"), (1, True, "relu"), (3, True, None)]
)
def test_conv_step(taps, bias, activation, dtype, device):
    from inference.modelling.backends.triton.conv import conv_step

    width = 300
    conv = make_conv(width, taps, bias, activation)
    state = torch.randn(5, width, taps - 1)
    state[0] = 0
    moved = state.clone().to(device)
    rows = torch.randn(3, width + 9).to(dtype)[:, :width]
    slots = [4, 0, 2]
    wanted = conv(rows, batch_of(3, slots, ()), state)
    weight, moved_bias = conv.weight.to(device), None if conv.bias is None else conv.bias.to(device)
    found = torch.full((3, width), torch.nan, device=device)
    conv_step(rows.to(device), moved, torch.tensor(slots, device=device), weight, moved_bias, activation, found)
    assert_close(found, wanted, torch.float32)
    state[0] = 0  # the reference writes scratch, the kernel doesn't
    assert torch.equal(moved.cpu(), state)


@pytest.mark.parametrize("taps", [1, 3, 4, 21])
@pytest.mark.parametrize("length", [1, 2, 3, 40])
@pytest.mark.parametrize("fresh", [False, True])
def test_conv_chunk(taps, length, fresh, device):
    from inference.modelling.backends.triton.conv import conv_chunk

    width = 10
    conv = make_conv(width, taps, True, "silu")
    state = torch.randn(2, width, taps - 1)
    moved = state.clone().to(device)
    rows = torch.randn(length, width)
    chunk = PrefillChunk(0, length, 0 if fresh else 9, 0, 1)
    wanted = conv(rows, batch_of(0, [1], (chunk,)), state)
    found = torch.full((length, width), torch.nan, device=device)
    conv_chunk(rows.to(device), moved, chunk, conv.weight.to(device), conv.bias.to(device), "silu", found)
    assert_close(found, wanted, torch.float32)
    assert torch.equal(moved.cpu(), state)


@pytest.mark.parametrize("activation", ["silu", None])
def test_a_batch_of_decodes_and_chunks(activation, device):
    from inference.modelling.backends.triton.conv import convolve

    conv = make_conv(10, 4, True, activation)
    state = torch.randn(5, 10, 3)
    state[0] = 0
    moved, rows = state.clone().to(device), torch.randn(9, 10)
    chunks = (PrefillChunk(2, 4, 0, 2, 3), PrefillChunk(4, 9, 7, 3, 4))
    batch = batch_of(2, [1, 2], chunks)
    wanted = conv(rows, batch, state)
    there = replace(batch, state_slots=batch.state_slots.to(device))
    assert_close(convolve(conv.to(device), rows.to(device), there, moved), wanted, torch.float32)
    assert torch.equal(moved.cpu(), state)
