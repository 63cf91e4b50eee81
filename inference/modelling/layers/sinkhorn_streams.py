"""Residual streams that are mixed anew around each mixer; see ``SinkhornStreamsSpec``.

Shape letters: T rows, h hidden, P streams.

Sources: https://arxiv.org/abs/2512.24880, and transformers' ``deepseek_v4``.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.specs.sinkhorn_streams import MeanStreamsSpec, SinkhornStreamsSpec


class SinkhornConnection(Layer):
    """What a mixer reads, and the streams that its result is added to; all weights in float32.

    Args:
        spec: Sizes and numbers.
        hidden_size: h.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"fn", "base", "scale"})

    def __init__(self, spec: SinkhornStreamsSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        count = spec.num_streams
        rows = (2 + count) * count
        self.fn = nn.Parameter(torch.empty(rows, count * hidden_size), requires_grad=False)
        self.base = nn.Parameter(torch.empty(rows), requires_grad=False)
        self.scale = nn.Parameter(torch.empty(3), requires_grad=False)

    def enter(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Read the streams (T, P, h).

        Returns:
            What the mixer reads, (T, h); the weight of its result for each stream, (T, P, 1) float32; the mixed streams
            that it is added to, (T, P, h) float32.
        """
        spec, count = self.spec, self.spec.num_streams
        values = streams.float()
        flat = values.flatten(1)
        inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + spec.norm_eps)
        logits = functional.linear(flat, self.fn) * inverse
        sizes = [count, count, count * count]
        parts = zip(torch.split(logits, sizes, 1), self.scale, torch.split(self.base, sizes), strict=True)
        reading, adding, mixing = (part * scale + base for part, scale, base in parts)
        entering = ((reading.sigmoid() + spec.eps).unsqueeze(2) * values).sum(1)
        weights = spec.magnitude * adding.sigmoid()
        mixture = self.balance(mixing.view(-1, count, count))
        return entering.to(streams.dtype), weights.unsqueeze(2), mixture.transpose(1, 2) @ values

    def balance(self, logits: torch.Tensor) -> torch.Tensor:
        """Float32 (T, P, P) to matrices whose columns, and nearly whose rows, sum to 1."""
        eps = self.spec.eps
        mixture = logits.softmax(-1) + eps
        mixture = mixture / (mixture.sum(-2, keepdim=True) + eps)
        for _ in range(self.spec.iterations - 1):
            mixture = mixture / (mixture.sum(-1, keepdim=True) + eps)
            mixture = mixture / (mixture.sum(-2, keepdim=True) + eps)
        return mixture


class SinkhornConnections(Layer):
    """Those of a layer's two mixers.

    Args:
        spec: Sizes and numbers.
        hidden_size: h.
    """

    def __init__(self, spec: SinkhornStreamsSpec, hidden_size: int) -> None:
        super().__init__()
        self.token = SinkhornConnection(spec, hidden_size)
        self.channel = SinkhornConnection(spec, hidden_size)


class MeanStreams(Layer):
    """How the streams begin and end.

    Args:
        spec: How many they are.
    """

    def __init__(self, spec: MeanStreamsSpec) -> None:
        super().__init__()
        self.spec = spec

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) of the embedding to (T, P, h)."""
        return hidden.unsqueeze(1).repeat(1, self.spec.num_streams, 1)

    def merge(self, streams: torch.Tensor) -> torch.Tensor:
        """(T, P, h) to the (T, h) before the final norm."""
        return streams.mean(1)
