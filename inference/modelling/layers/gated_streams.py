"""Several residual streams that each mixer reads and adds to by gates; see ``GatedStreamsSpec``.

Shape letters: T rows, h hidden, P streams.

Source: transformers' ``hy_v4``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.specs.gated_streams import GatedStreamsSpec


class StreamGate(Layer):
    """Gates of the streams, in float32.

    Args:
        spec: Sizes and numbers.
        hidden_size: h.
        kinds: 2: for reading and for adding; 1: for reading.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"fn", "base", "scale"})

    def __init__(self, spec: GatedStreamsSpec, hidden_size: int, kinds: int) -> None:
        super().__init__()
        self.spec = spec
        rows = kinds * spec.num_streams
        self.fn = nn.Parameter(torch.empty(rows, spec.num_streams * hidden_size), requires_grad=False)
        self.base = nn.Parameter(torch.empty(rows), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(kinds), requires_grad=False)

    def gates(self, streams: torch.Tensor) -> torch.Tensor:
        """(T, P, h) to (T, kinds, P) float32, before what is added to them."""
        flat = streams.flatten(1).float()
        inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.spec.norm_eps)
        logits = (functional.linear(flat, self.fn) * inverse).view(len(flat), len(self.scale), -1)
        return torch.sigmoid(logits * self.scale.unsqueeze(1) + self.base.view(len(self.scale), -1))

    def enter(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, P, h) to what the mixer reads, (T, h), and the weight of its result for each stream, (T, P, 1)."""
        reading, adding = self.gates(streams).unbind(1)
        weights = self.spec.magnitude * adding + self.spec.eps
        return self._sum(streams, reading), weights.unsqueeze(2)

    def merge(self, streams: torch.Tensor) -> torch.Tensor:
        """(T, P, h) to the (T, h) before the final norm."""
        return self._sum(streams, self.gates(streams)[:, 0])

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) of the embedding to (T, P, h)."""
        return hidden.unsqueeze(1).repeat(1, self.spec.num_streams, 1)

    def _sum(self, streams: torch.Tensor, reading: torch.Tensor) -> torch.Tensor:
        shares = (reading + self.spec.eps).unsqueeze(2)
        return (shares * streams.float()).sum(1).to(streams.dtype)
