"""Attention residuals: mixers read the sums of blocks of layers by learned queries; see ``BlockResidualSpec``.

Source: transformers' ``inkling2``.

Shape letters: T rows, h hidden, N streams, Q queries.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.inkling2 import BlockResidualSpec

EPS = 1e-6
"""Added to the mean of a stream's squares."""


def read_streams(streams: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """(T, N, h) of the streams and (Q, h) queries to float32 (T, Q, h): each query's attention to the streams."""
    normed = functional.rms_norm(streams.float(), streams.shape[-1:], eps=EPS)
    scores = torch.matmul(query.float(), normed.transpose(1, 2)) * query.shape[1] ** -0.5
    return torch.matmul(scores.softmax(-1), normed)


class BlockInput(Layer):
    """What a mixer reads of the streams.

    Args:
        spec: Norms.
        hidden_size: h.
        num_inputs: Q.
        has_query: False: there is one stream, which the norms read as it is.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"query"})

    def __init__(self, spec: BlockResidualSpec, hidden_size: int, num_inputs: int, *, has_query: bool) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(num_inputs, hidden_size), requires_grad=False) if has_query else None
        self.norm = Norm(spec.norm, num_inputs, hidden_size)

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """(T, N, h) to (T, h), or (Q, T, h) where the mixer reads several rows of each token."""
        read = streams.float() if self.query is None else read_streams(streams, self.query)
        assert self.norm.weight is not None
        count = self.norm.weight.shape[0]
        normed = self.norm.normalise(read.expand(-1, count, -1)).to(streams.dtype)
        return normed.squeeze(1) if count == 1 else normed.transpose(0, 1)


class BlockResidual(Layer):
    """What both mixers of a layer read.

    Args:
        spec: What the mixers read.
        hidden_size: h.
    """

    def __init__(self, spec: BlockResidualSpec, hidden_size: int) -> None:
        super().__init__()
        self.token = BlockInput(spec, hidden_size, spec.num_inputs, has_query=not spec.reads_embedding)
        self.channel = BlockInput(spec, hidden_size, 1, has_query=True)


class BlockStreams(Layer):
    """How the streams begin and end.

    Args:
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"query"})

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, hidden_size), requires_grad=False)

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) of the embedding to (T, 1, h)."""
        return hidden.unsqueeze(1)

    def merge(self, streams: torch.Tensor) -> torch.Tensor:
        """(T, N, h) to the (T, h) before the final norm."""
        return read_streams(streams, self.query).squeeze(1).to(streams.dtype)
