"""ClippedAttention: scores by the definition, whatever the cuts between steps."""

from __future__ import annotations

import math

import pytest
import torch

from inference.modelling.forward_batch import LayerState
from inference.modelling.layers.clipped_attention import ClippedAttention, clip
from inference.modelling.specs.inkling2 import ClippedAttentionSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.layers.test_relative_attention import BLOCK, COUNT, HIDDEN, PIECES, convolved, step

V_NORM = NormSpec(eps=1e-5, weightless=True)
SPECS = [
    ClippedAttentionSpec(
        4, 2, 6, 0.4, v_norm=V_NORM, output_gate=True, conv_kernel=3, conv_scale=0.5, relative_width=5, extent=4,
        sliding_window=5, qk_limit=2.0, relative_limit=1.5,
    ),
    ClippedAttentionSpec(
        4, 2, 6, 0.4, v_norm=V_NORM, output_gate=True, conv_kernel=3, conv_scale=0.3, relative_width=5, extent=9,
        score_growth=(0.9, 3), qk_limit=2.0, relative_limit=1.5, has_three_inputs=True,
    ),
    ClippedAttentionSpec(
        3, 3, 4, 0.5, v_norm=V_NORM, output_gate=True, conv_kernel=1, relative_width=1, extent=30, qk_limit=100.0,
        relative_limit=100.0, has_three_inputs=True,
    ),
]  # fmt: skip


def make(spec: ClippedAttentionSpec) -> ClippedAttention:
    layer = ClippedAttention(spec, HIDDEN)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def cut(vector: torch.Tensor, limit: float) -> torch.Tensor:
    return vector * min(1.0, limit / (float(vector.norm()) + 1e-6))


def keys_and_values(layer: ClippedAttention, hidden: torch.Tensor) -> torch.Tensor:
    """(COUNT, 2 · V · P) behind the convolution."""
    spec = layer.clipped
    if not spec.has_three_inputs:
        return spec.conv_scale * convolved(layer, layer.qkv_proj(hidden)[:, spec.num_heads * spec.head_dim :])
    rows = torch.cat((layer.key_proj(hidden[1]), layer.value_proj(hidden[2])), 1)
    numbers = torch.cat((layer.key_taps_proj(hidden[1]), layer.value_taps_proj(hidden[2])), 1)
    numbers = numbers.view(COUNT, -1, spec.conv_kernel).repeat_interleave(spec.head_dim, 1)
    out = rows.clone()
    for at in range(COUNT):
        for lag in range(min(spec.conv_kernel, at + 1)):
            out[at] += (layer.conv.taps[:, lag] + numbers[at, :, lag]) * rows[at - lag]
    return spec.conv_scale * out


def defined(layer: ClippedAttention, hidden: torch.Tensor) -> torch.Tensor:
    """The output of a whole sequence, score by score."""
    spec, found = layer.clipped, []
    rows = hidden[0] if spec.has_three_inputs else hidden
    queries = layer.qkv_proj(rows)[:, : spec.num_heads * spec.head_dim].view(COUNT, spec.num_heads, -1)
    keys, values = keys_and_values(layer, hidden).view(COUNT, 2, spec.num_kv_heads, spec.head_dim).unbind(1)
    relative, sinks = layer.relative_proj(rows).view(COUNT, spec.num_heads, -1), layer.sink_proj(rows)
    for at in range(COUNT):
        slope, length = spec.score_growth or (0.0, 1)
        growth = 1 + slope * math.log(max(1.0, (at + 1) / length))
        heads = []
        for head in range(spec.num_heads):
            own = head * spec.num_kv_heads // spec.num_heads
            seen = range(max(0, at + 1 - (spec.sliding_window or COUNT)), at + 1)
            query = cut(queries[at, head] * layer.query_scale[head], spec.qk_limit)
            mixed = cut(relative[at, head] * layer.relative_scale[head], spec.relative_limit)
            profile = torch.cat((mixed @ layer.relative_profiles, torch.zeros(COUNT)))
            scores = [
                growth * (spec.scale * query @ cut(keys[key, own], spec.qk_limit) + profile[at - key]) for key in seen
            ]
            weights = torch.stack([*scores, sinks[at, head]]).softmax(0)[:-1]
            normed = [values[key, own] / (values[key, own].square().mean() + 1e-5).sqrt() for key in seen]
            heads.append(weights @ torch.stack(normed))
        found.append(torch.cat(heads))
    return layer.o_proj(torch.stack(found) * layer.gate_proj(rows).sigmoid())


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("number", range(len(SPECS)))
def test_outputs_are_those_of_the_definition(number: int, pieces: tuple[int, ...]) -> None:
    layer = make(SPECS[number])
    inputs = 3 if layer.clipped.has_three_inputs else 1
    hidden = torch.randn(inputs, COUNT, HIDDEN, generator=torch.Generator().manual_seed(2))
    state: LayerState = {
        part.name: torch.full((4 * BLOCK if part.per == "token" else 4, *part.shape), 7.0)
        for part in layer.clipped.state()
    }
    hidden = hidden if inputs == 3 else hidden[0]
    done, parts = 0, []
    for count in pieces:
        parts.append(layer(hidden[..., done : done + count, :], step(done, count), state))
        done += count
    torch.testing.assert_close(torch.cat(parts), defined(layer, hidden), rtol=1e-3, atol=1e-4)
    assert (state["k"][:BLOCK] == 7.0).all(), "another sequence's state was written"


def test_only_longer_vectors_are_cut() -> None:
    found = clip(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    scaled = clip(torch.tensor([[3.0, 4.0]], dtype=torch.bfloat16), 2.0, torch.tensor([[1.0, 0.0]]))
    assert scaled.dtype == torch.bfloat16 and scaled.tolist() == [[2.0, 0.0]]


def test_no_kernel_takes_it() -> None:
    assert not make(SPECS[0]).is_plain
