"""Hyper-connections: mixers read a mix of several residual streams, and add what they give to each of them.

Shape letters: T rows, h hidden, P streams.

Sources: https://arxiv.org/abs/2409.19606, and transformers' ``qwen4_exp``.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from inference.modelling.layers.gated_streams import StreamGate
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.hyper import HyperConnectionSpec, HyperStreamsSpec


class StreamReader(Layer):
    """The mix of the streams that is read.

    Args:
        spec: Sizes.
        hidden_size: h.
    """

    def __init__(self, spec: HyperConnectionSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        width = spec.num_streams * hidden_size
        self.norm = Norm(spec.norm, spec.num_streams, hidden_size)
        self.down_proj = Linear(width, spec.rank)
        self.up_proj = Linear(spec.rank, width)

    def read(self, normed: torch.Tensor) -> torch.Tensor:
        """(T, P, h) of normed streams to (T, h)."""
        low = functional.silu(self.down_proj(normed.flatten(1)) / self.spec.num_streams)
        shares = self.up_proj(low).sigmoid().view_as(normed)
        mixed: torch.Tensor = (shares * normed).mean(1)
        return mixed


class StreamConnection(StreamReader):
    """What a mixer reads, and how much of its result each stream gets; arguments as of ``StreamReader``."""

    def __init__(self, spec: HyperConnectionSpec, hidden_size: int) -> None:
        super().__init__(spec, hidden_size)
        self.inject = Linear(spec.num_streams * hidden_size, spec.num_streams)

    def enter(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, P, h) to what the mixer reads, (T, h), and the weight of its result for each stream, (T, P, 1)."""
        normed = self.norm(streams)
        weights = 2 * (self.inject(normed.flatten(1)) / self.spec.num_streams).sigmoid()
        return self.read(normed), weights.unsqueeze(2)


class HyperConnections(Layer):
    """Those of a layer's two mixers.

    Args:
        spec: Sizes.
        hidden_size: h.
    """

    def __init__(self, spec: HyperConnectionSpec | GatedStreamsSpec, hidden_size: int) -> None:
        super().__init__()
        self.token = _connection(spec, hidden_size)
        self.channel = _connection(spec, hidden_size)


def _connection(spec: HyperConnectionSpec | GatedStreamsSpec, hidden_size: int) -> StreamConnection | StreamGate:
    if isinstance(spec, GatedStreamsSpec):
        return StreamGate(spec, hidden_size, 2)
    return StreamConnection(spec, hidden_size)


class HyperStreams(StreamReader):
    """The streams' begin and end.

    Args:
        spec: How they are read at the end.
        hidden_size: h.
    """

    def __init__(self, spec: HyperStreamsSpec, hidden_size: int) -> None:
        super().__init__(spec.connection, hidden_size)

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) of the embedding to (T, P, h)."""
        return hidden.unsqueeze(1).repeat(1, self.spec.num_streams, 1)

    def merge(self, streams: torch.Tensor) -> torch.Tensor:
        """(T, P, h) to the (T, h) that the head reads."""
        return self.read(self.norm(streams))
