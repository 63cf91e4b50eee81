"""SinkhornConnection: what is read, what is added, and how the streams are mixed."""

from __future__ import annotations

import torch

from inference.modelling.layers.sinkhorn_streams import MeanStreams, SinkhornConnection, SinkhornConnections
from inference.modelling.specs.sinkhorn_streams import MeanStreamsSpec, SinkhornStreamsSpec

HIDDEN, STREAMS = 8, 3
SPEC = SinkhornStreamsSpec(num_streams=STREAMS, magnitude=2.0, eps=0.01, norm_eps=1e-3, iterations=3)


def filled(iterations: int = 3) -> SinkhornConnection:
    connection = SinkhornConnection(SinkhornStreamsSpec(STREAMS, 2.0, 0.01, 1e-3, iterations), HIDDEN)
    generator = torch.Generator().manual_seed(0)
    for parameter in connection.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return connection


def streams_of(rows: int) -> torch.Tensor:
    return torch.randn(rows, STREAMS, HIDDEN, generator=torch.Generator().manual_seed(1))


def test_a_mixer_reads_and_adds_by_gates_and_the_streams_are_mixed() -> None:
    connection, streams = filled(), streams_of(4)
    entering, weights, carried = connection.enter(streams)
    for row, own in enumerate(streams):
        flat = own.flatten()
        logits = connection.fn @ (flat * torch.rsqrt(flat.square().mean() + 1e-3))
        scale, base = connection.scale, connection.base
        reading = torch.sigmoid(logits[:3] * scale[0] + base[:3]) + 0.01
        torch.testing.assert_close(entering[row], reading @ own)
        torch.testing.assert_close(weights[row, :, 0], 2 * torch.sigmoid(logits[3:6] * scale[1] + base[3:6]))
        mixture = (logits[6:] * scale[2] + base[6:]).view(3, 3).softmax(1) + 0.01
        for turn in range(5):
            axis = 0 if turn % 2 == 0 else 1
            mixture = mixture / (mixture.sum(axis, keepdim=True) + 0.01)
        torch.testing.assert_close(carried[row], mixture.T @ own)


def test_many_iterations_nearly_keep_the_sum_of_the_streams() -> None:
    connection, streams = filled(200), streams_of(5)
    connection.spec = SinkhornStreamsSpec(STREAMS, 2.0, 1e-7, 1e-3, 200)
    carried = connection.enter(streams)[2]
    torch.testing.assert_close(carried.sum(1), streams.sum(1), rtol=1e-3, atol=1e-3)


def test_both_mixers_have_connections_and_rows_stand_alone() -> None:
    connections = SinkhornConnections(SPEC, HIDDEN)
    assert {name: tuple(value.shape) for name, value in connections.named_parameters()} == SPEC.layer_shapes(HIDDEN)
    connection, streams = filled(), streams_of(4)
    for whole, part in zip(connection.enter(streams), connection.enter(streams[1:2]), strict=True):
        torch.testing.assert_close(whole[1:2], part)


def test_weights_are_float32_beside_streams_of_fewer_bits() -> None:
    entering, weights, carried = filled().enter(streams_of(2).bfloat16())
    assert entering.dtype == torch.bfloat16 and weights.dtype == carried.dtype == torch.float32


def test_streams_may_begin_as_copies_and_end_as_their_mean() -> None:
    ends, hidden = MeanStreams(MeanStreamsSpec(STREAMS)), streams_of(4)[:, 0]
    begun = ends.split(hidden)
    assert begun.shape == (4, STREAMS, HIDDEN) and all(torch.equal(part, hidden) for part in begun.unbind(1))
    streams = streams_of(4)
    torch.testing.assert_close(ends.merge(streams), sum(streams.unbind(1)) / STREAMS)
    assert not list(ends.parameters()) and not MeanStreamsSpec(STREAMS).parameter_shapes(HIDDEN)
