"""What mixers read of the streams of blocks, by the definition."""

from __future__ import annotations

import pytest
import torch

from inference.modelling.layers.block_residual import BlockResidual, BlockStreams, read_streams
from inference.modelling.specs.inkling2 import BlockResidualSpec
from inference.modelling.specs.parts import NormSpec

HIDDEN, ROWS, STREAMS = 6, 4, 3
NORM = NormSpec(eps=1e-4)


def filled(layer: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return layer


def streams(count: int = STREAMS) -> torch.Tensor:
    return torch.randn(ROWS, count, HIDDEN, generator=torch.Generator().manual_seed(2))


def defined(values: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """(N, h) of one token to what one query (h,) reads."""
    normed = [one / (one.square().mean() + 1e-6).sqrt() for one in values]
    weights = torch.stack([(one * query).sum() / HIDDEN**0.5 for one in normed]).softmax(0)
    return sum(weight * one for weight, one in zip(weights, normed, strict=True))


def root_normed(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return values / (values.square().mean() + NORM.eps).sqrt() * weight


@pytest.mark.parametrize("count", [1, STREAMS])
def test_a_query_reads_the_streams_by_their_directions(count: int) -> None:
    values, queries = streams(count), torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(3))
    found = read_streams(values, queries)
    assert found.shape == (ROWS, 2, HIDDEN)
    for row in range(ROWS):
        for number, query in enumerate(queries):
            torch.testing.assert_close(found[row, number], defined(values[row], query), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(read_streams(values * 100, queries), found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inputs", [1, 3])
def test_each_input_has_a_query_and_a_norm(inputs: int) -> None:
    layer, values = filled(BlockResidual(BlockResidualSpec(NORM, num_inputs=inputs), HIDDEN)), streams()
    token, channel = layer.token(values), layer.channel(values)
    assert token.shape == ((ROWS, HIDDEN) if inputs == 1 else (3, ROWS, HIDDEN)) and channel.shape == (ROWS, HIDDEN)
    token = token.view(inputs, ROWS, HIDDEN)
    for row in range(ROWS):
        for number in range(inputs):
            read = defined(values[row], layer.token.query[number])
            expected = root_normed(read, layer.token.norm.weight[number])
            torch.testing.assert_close(token[number, row], expected, rtol=1e-4, atol=1e-5)
        expected = root_normed(defined(values[row], layer.channel.query[0]), layer.channel.norm.weight[0])
        torch.testing.assert_close(channel[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inputs", [1, 3])
def test_the_first_layer_reads_the_embedding_as_it_is(inputs: int) -> None:
    spec = BlockResidualSpec(NORM, num_inputs=inputs, reads_embedding=True)
    layer, values = filled(BlockResidual(spec, HIDDEN)), streams(1)
    found = layer.token(values).view(inputs, ROWS, HIDDEN)
    for number in range(inputs):
        expected = torch.stack([root_normed(row, layer.token.norm.weight[number]) for row in values[:, 0]])
        torch.testing.assert_close(found[number], expected, rtol=1e-4, atol=1e-5)


def test_streams_begin_as_the_embedding_and_are_read_at_the_end() -> None:
    ends, hidden = filled(BlockStreams(HIDDEN)), streams()[:, 0]
    assert torch.equal(ends.split(hidden)[:, 0], hidden)
    values = streams()
    expected = torch.stack([defined(row, ends.query[0]) for row in values])
    torch.testing.assert_close(ends.merge(values), expected, rtol=1e-4, atol=1e-5)
    assert ends.merge(values.bfloat16()).dtype == torch.bfloat16
