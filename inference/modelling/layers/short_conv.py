"""ShortConv: LFM2's gated short convolution, the token mixer of its layers without attention."""

from __future__ import annotations

import torch

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.conv import CausalConv1d
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Linear
from inference.modelling.specs.linear import ShortConvSpec


class ShortConv(Layer):
    """out_proj(C · conv(B · x)) with B, C, x = in_proj(hidden). The convolution has no activation.

    Source: https://arxiv.org/abs/2511.23404, section 2.

    Args:
        spec: Kernel and biases.
        hidden_size: h.
    """

    def __init__(self, spec: ShortConvSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.in_proj = Linear(hidden_size, 3 * spec.width, spec.bias)
        self.conv1d = CausalConv1d(spec.width, spec.conv_kernel, bias=spec.bias, activation=None)
        self.out_proj = Linear(spec.width, hidden_size, spec.bias)

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the convolution tails of the batch's sequences advance."""
        gate_in, gate_out, values = self.in_proj(hidden).chunk(3, 1)
        mixed = self.conv1d(gate_in * values, batch, state["conv_state"])
        out: torch.Tensor = self.out_proj(gate_out * mixed.to(hidden.dtype))
        return out
