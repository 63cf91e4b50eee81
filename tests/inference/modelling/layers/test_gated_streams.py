"""Gates of streams against their formula, row by row."""

from __future__ import annotations

import torch

from inference.modelling.layers.gated_streams import StreamGate
from inference.modelling.layers.hyper import HyperConnections
from inference.modelling.specs.gated_streams import GatedStreamsSpec

SPEC = GatedStreamsSpec(num_streams=3, magnitude=1.5, eps=0.01, norm_eps=1e-3)
HIDDEN = 5


def filled(layer: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for part in layer.parameters():
        part.data.copy_(torch.randn(part.shape, generator=generator))
    return layer


def test_mixers_read_a_sum_and_add_to_each_stream() -> None:
    gates = filled(HyperConnections(SPEC, HIDDEN))
    streams = torch.randn(4, 3, HIDDEN, generator=torch.Generator().manual_seed(1))
    for gate in (gates.token, gates.channel):
        entering, weights = gate.enter(streams)
        for row, own in enumerate(streams):
            flat = own.flatten()
            logits = gate.fn @ (flat / (flat.square().mean() + 1e-3).sqrt())
            reading = torch.sigmoid(logits[:3] * gate.scale[0] + gate.base[:3]) + 0.01
            adding = 1.5 * torch.sigmoid(logits[3:] * gate.scale[1] + gate.base[3:]) + 0.01
            assert torch.allclose(entering[row], reading @ own, atol=1e-5)
            assert torch.allclose(weights[row, :, 0], adding, atol=1e-5)


def test_streams_begin_as_copies_and_end_as_a_sum() -> None:
    gate = filled(StreamGate(SPEC, HIDDEN, 1))
    hidden = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(2))
    streams = gate.split(hidden)
    assert torch.equal(streams, torch.stack((hidden,) * 3, 1))
    shares = gate.gates(streams)[:, 0] + 0.01
    assert torch.allclose(gate.merge(streams), shares.sum(1, keepdim=True) * hidden, atol=1e-5)
    assert torch.equal(gate.merge(streams)[:1], gate.merge(streams[:1]))
