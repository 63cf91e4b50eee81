"""RelativeAttention: scores by the definition, whatever the cuts between steps."""

from __future__ import annotations

import math

import pytest
import torch

from inference.modelling.forward_batch import AttentionMetadata, ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers import relative_attention
from inference.modelling.layers.relative_attention import RelativeAttention
from inference.modelling.specs.inkling import RelativeAttentionSpec
from inference.modelling.specs.parts import NormSpec

HIDDEN, COUNT, SLOT, BLOCK = 10, 12, 2, 4
SPECS = [
    RelativeAttentionSpec(4, 2, 6, 1 / 6, qk_norm=NormSpec(), conv_kernel=3, relative_width=5, extent=4),
    RelativeAttentionSpec(
        2, 1, 4, 0.7, qk_norm=NormSpec(), conv_kernel=2, relative_width=3, extent=30, score_growth=(0.9, 3)
    ),
    RelativeAttentionSpec(
        3, 3, 4, 0.5, qk_norm=NormSpec(), sliding_window=5, conv_kernel=1, relative_width=1, extent=5
    ),
]
PIECES = [(12,), (1,) * 12, (5, 1, 1, 3, 2)]


def make(spec: RelativeAttentionSpec) -> RelativeAttention:
    layer = RelativeAttention(spec, HIDDEN)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def step(done: int, count: int) -> ForwardBatch:
    rows = torch.arange(done, done + count)
    decodes = int(count == 1 and done > 0)
    attention = AttentionMetadata(
        blocks=torch.tensor([2, 1, 3], dtype=torch.int32),
        starts=torch.tensor([0]),
        lengths=torch.tensor([done + count]),
        first_rows=torch.tensor([0, count]),
        block_size=BLOCK,
    )
    slots = torch.tensor([2, 1, 3])[rows // BLOCK] * BLOCK + rows % BLOCK
    chunks = () if decodes else (PrefillChunk(0, count, done, 0, SLOT),)
    return ForwardBatch(torch.zeros_like(rows), rows, slots, torch.tensor([SLOT]), decodes, chunks, attention)


def convolved(layer: RelativeAttention, rows: torch.Tensor) -> torch.Tensor:
    """Each row and the taps' sum over the rows up to it."""
    taps = layer.conv.conv1d.weight[:, 0].T
    padded = torch.cat((torch.zeros(len(taps) - 1, rows.shape[1]), rows))
    return torch.stack([row + (padded[at : at + len(taps)] * taps).sum(0) for at, row in enumerate(rows)])


def defined(layer: RelativeAttention, hidden: torch.Tensor) -> torch.Tensor:
    """The output of a whole sequence, score by score."""
    spec, found = layer.relative, []
    joint = layer.qkv_proj(hidden)
    width = spec.num_heads * spec.head_dim
    keys, values = convolved(layer, joint[:, width:]).view(COUNT, 2, spec.num_kv_heads, spec.head_dim).unbind(1)
    queries, keys = layer.normed(joint[:, :width], keys)
    relative = layer.relative_proj(hidden).view(COUNT, spec.num_heads, -1)
    for at in range(COUNT):
        slope, length = spec.score_growth or (0.0, 1)
        growth = 1 + slope * math.log(max(1.0, (at + 1) / length))
        heads = []
        for head in range(spec.num_heads):
            own = head * spec.num_kv_heads // spec.num_heads
            seen = range(max(0, at + 1 - (spec.sliding_window or COUNT)), at + 1)
            profile = torch.cat((relative[at, head] @ layer.relative_profiles, torch.zeros(COUNT)))
            products = [spec.scale * queries[at, head] @ keys[key, own] + profile[at - key] for key in seen]
            scores = growth * torch.stack(products)
            heads.append(scores.softmax(0) @ values[seen.start : seen.stop, own])
        found.append(torch.cat(heads))
    return layer.o_proj(torch.stack(found))


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_outputs_are_those_of_the_definition(number: int, pieces: tuple[int, ...]) -> None:
    layer = make(SPECS[number])
    hidden = torch.randn(COUNT, HIDDEN, generator=torch.Generator().manual_seed(2))
    state: LayerState = {
        part.name: torch.full((4 * BLOCK if part.per == "token" else 4, *part.shape), 7.0)
        for part in layer.relative.state()
    }
    done, parts = 0, []
    for count in pieces:
        parts.append(layer(hidden[done : done + count], step(done, count), state))
        done += count
    torch.testing.assert_close(torch.cat(parts), defined(layer, hidden), rtol=1e-4, atol=1e-4)
    assert (state["conv_state"][[0, 1, 3]] == 7.0).all(), "another sequence's state was written"
    assert (state["k"][:BLOCK] == 7.0).all()


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_blocks_of_rows_compute_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make(SPECS[number])
    hidden = torch.randn(COUNT, HIDDEN, generator=torch.Generator().manual_seed(2))

    def computed() -> torch.Tensor:
        state = {
            part.name: torch.zeros(4 * BLOCK if part.per == "token" else 4, *part.shape)
            for part in layer.relative.state()
        }
        first = layer(hidden[:2], step(0, 2), state)
        return torch.cat((first, layer(hidden[2:], step(2, COUNT - 2), state)))

    whole = computed()
    monkeypatch.setattr(relative_attention, "MAX_SCORES", 1 << 7)  # blocks of one to three rows
    torch.testing.assert_close(computed(), whole, rtol=1e-5, atol=1e-5)


def test_no_kernel_takes_it() -> None:
    assert not make(SPECS[0]).is_plain
