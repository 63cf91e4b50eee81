"""ConvolvedAttention: queries, keys and values by the definition, whatever the cuts between steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.convolved_attention import ConvolvedAttention, HeadConv1d
from inference.modelling.specs.zaya import ConvolvedAttentionSpec

HIDDEN, SLOT, COUNT = 10, 2, 9
SPECS = [
    ConvolvedAttentionSpec(4, 2, 6, 1.0, qkv_bias=True, channel_kernel=3, head_kernel=2),
    ConvolvedAttentionSpec(2, 2, 4, 1.0, channel_kernel=1, head_kernel=3),
    ConvolvedAttentionSpec(3, 1, 4, 1.0, channel_kernel=2, head_kernel=1),
]
PIECES = [(9,), (1, 1, 7), (4, 1, 1, 3)]


def make(spec: ConvolvedAttentionSpec) -> ConvolvedAttention:
    layer = ConvolvedAttention(spec, HIDDEN)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return layer


def step(done: int, count: int) -> ForwardBatch:
    zeros, decodes = torch.zeros(count, dtype=torch.int64), int(count == 1 and done > 0)
    chunk = PrefillChunk(0, count, done, 0, SLOT)
    return ForwardBatch(zeros, zeros, zeros, torch.tensor([SLOT]), decodes, () if decodes else (chunk,))


def defined(layer: ConvolvedAttention, hidden: torch.Tensor) -> torch.Tensor:
    """Queries, keys and values of a whole sequence, position by position."""
    spec = layer.convolved
    rows = layer.qkv_proj(hidden)
    raw, width, heads = rows[:, : spec.conv_width], spec.head_dim, spec.num_heads + spec.num_kv_heads
    nothing = torch.zeros(spec.channel_kernel + spec.head_kernel - 2, spec.conv_width)
    padded = torch.cat((nothing, raw)).T.unsqueeze(0)
    first = torch.nn.functional.conv1d(padded, layer.conv1d.weight, layer.conv1d.bias, groups=spec.conv_width)
    second = torch.nn.functional.conv1d(first, layer.head_conv.weight, layer.head_conv.bias, groups=heads)[0].T
    bias = (
        torch.zeros(spec.delayed_width) if layer.qkv_proj.bias is None else layer.qkv_proj.bias[-spec.delayed_width :]
    )
    found = []
    for at in range(len(hidden)):
        own = raw[at].view(heads, width)
        groups = spec.num_heads // spec.num_kv_heads
        query_means = torch.stack(
            [(own[head] + own[spec.num_heads + head // groups]) / 2 for head in range(spec.num_heads)]
        )
        key_means = query_means.view(spec.num_kv_heads, groups, width).mean(1)
        mixed = second[at].view(heads, width) + torch.cat((query_means, key_means))
        mixed = mixed / mixed.norm(dim=-1, keepdim=True) * width**0.5
        mixed[spec.num_heads :] *= layer.key_scale[:, None]
        current = rows[at, spec.conv_width : spec.conv_width + spec.delayed_width]
        delayed = rows[at - 1, -spec.delayed_width :] if at else bias
        found.append(torch.cat((mixed.flatten(), current, delayed)))
    return torch.stack(found)


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_projections_are_those_of_the_definition(number: int, pieces: tuple[int, ...]) -> None:
    layer = make(SPECS[number])
    hidden = torch.randn(COUNT, HIDDEN, generator=torch.Generator().manual_seed(2))
    state: dict[str, Any] = {
        part.name: torch.full((4, *part.shape), 7.0) for part in layer.convolved.state() if part.per == "sequence"
    }
    done, parts = 0, []
    for count in pieces:
        parts.append(layer.project(hidden[done : done + count], step(done, count), state))
        done += count
    torch.testing.assert_close(torch.cat(parts), defined(layer, hidden), rtol=1e-4, atol=1e-5)
    assert all((part[[0, 1, 3]] == 7.0).all() for part in state.values()), "another sequence's state was written"


def test_a_zero_vector_stays_zero() -> None:
    layer = make(SPECS[2])
    for parameter in (layer.conv1d.bias, layer.head_conv.bias):
        parameter.data.zero_()
    state = {part.name: torch.zeros(4, *part.shape) for part in layer.convolved.state() if part.per == "sequence"}
    assert (layer.project(torch.zeros(2, HIDDEN), step(0, 2), state) == 0).all()


def test_matrices_follow_the_weight() -> None:
    conv = HeadConv1d(2, 3, 2)
    conv.weight.data = torch.randn(6, 3, 2)
    first = conv._matrices()
    assert conv._matrices() is first
    assert torch.equal(first[1, 1, :, 2], conv.weight[3 + 2, :, 1])
    conv.weight = torch.nn.Parameter(conv.weight * 2, requires_grad=False)
    torch.testing.assert_close(conv._matrices(), 2 * first)
