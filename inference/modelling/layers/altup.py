"""Several residual streams: their begin and end, and what predicts and corrects them around a layer's mixers.

Shape letters: T rows, h hidden, P streams.

Sources: https://arxiv.org/abs/2301.13310 (AltUp), https://arxiv.org/abs/2411.07501 (LAuReL), and transformers'
``gemma3n``.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.altup import AltUpSpec, StreamsSpec

LEAST_SQUARE = 1e-5
"""The mean square of a projection counts as this at least."""


class Streams(Layer):
    """The streams' begin and end.

    Args:
        spec: How many.
        hidden_size: h.
    """

    def __init__(self, spec: StreamsSpec, hidden_size: int) -> None:
        super().__init__()
        shape = (spec.num_streams - 1, hidden_size, hidden_size)
        self.enter = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.leave = nn.Parameter(torch.empty(shape), requires_grad=False)

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) of the embedding to (P, T, h)."""
        return torch.cat((hidden.unsqueeze(0), _like(hidden, hidden @ self.enter.transpose(1, 2))))

    def merge(self, streams: torch.Tensor) -> torch.Tensor:
        """(P, T, h) to the (T, h) before the final norm."""
        first, others = streams[:1], streams[1:] @ self.leave.transpose(1, 2)
        return torch.cat((first, _like(first, others))).mean(0)


def _like(first: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """``others`` (…, T, h), each row in the magnitude that the row of ``first`` has."""
    magnitude = first.square().mean(-1, keepdim=True).sqrt()
    found = others.square().mean(-1, keepdim=True).clamp(min=LEAST_SQUARE).sqrt()
    return others * magnitude / found


class AltUp(Layer):
    """Predicts and corrects the streams around one layer's mixers.

    Args:
        spec: Sizes.
        hidden_size: h.
    """

    def __init__(self, spec: AltUpSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        count = spec.num_streams
        self.prediction = Linear(count, count * count)
        self.correction = Linear(count, count)
        self.router = Linear(hidden_size, count)
        self.router_norm = Norm(spec.norm, hidden_size)
        self.laurel_down_proj = Linear(hidden_size, spec.laurel_rank)
        self.laurel_up_proj = Linear(spec.laurel_rank, hidden_size)
        self.laurel_norm = Norm(spec.norm, hidden_size)
        self.output_scale = None
        if spec.has_output_scale:
            self.output_scale = nn.Parameter(torch.empty(hidden_size), requires_grad=False)

    def predict(self, streams: torch.Tensor) -> torch.Tensor:
        """(P, T, h) before the layer to the same as predicted: each stream plus a mix of all of them."""
        count = self.spec.num_streams
        # (T, to, from): row i of a token mixes the streams into the i-th.
        mix = self.prediction(self._modes(streams[self.spec.active])).view(-1, count, count)
        return streams + torch.einsum("tij,jth->ith", mix, streams)

    def correct(self, predicted: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """Move the streams (P, T, h) by how far the active one's prediction was from what was computed (T, h)."""
        shares = self.correction(self._modes(computed)) + 1.0
        corrected: torch.Tensor = predicted + shares.T.unsqueeze(-1) * (computed - predicted[self.spec.active])
        return corrected

    def laurel(self, normed: torch.Tensor) -> torch.Tensor:
        """(T, h) to the (T, h) that stand beside the token mixer's result."""
        low: torch.Tensor = self.laurel_norm(self.laurel_up_proj(self.laurel_down_proj(normed)))
        return normed + low

    def gate_input(self, streams: torch.Tensor) -> torch.Tensor:
        """(T, h) that gate the layer's own input."""
        active = streams[self.spec.active]
        return active if self.output_scale is None else active * self.output_scale

    def _modes(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, P): what the coefficients depend on."""
        routed = self.router(self.router_norm(hidden) / self.router_norm.width)
        return functional.tanh(routed.float()).to(hidden.dtype)
