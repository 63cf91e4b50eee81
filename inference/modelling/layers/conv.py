"""Causal depthwise convolution whose last inputs are kept from one step to the next."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.layer import Layer
from inference.modelling.layers.mlp import ACTIVATION_FUNCTIONS


def _unchanged(values: torch.Tensor) -> torch.Tensor:
    return values


class CausalConv1d(Layer):
    """y_t = act(bias + Σ_j w_j · x_{t-K+1+j}) for each channel alone; zeros before a sequence's start.

    The state holds the last K-1 inputs as they came in, before convolution and activation, oldest first.

    Args:
        width: Channels C.
        kernel_size: Stored taps; K where they are one apart.
        bias: Whether there is a bias.
        activation: Name of the function applied to the sum; None: none is.
        dilation: How far the stored taps are apart: K = (``kernel_size`` - 1) · dilation + 1, with taps of 0 between.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"weight", "bias"})

    def __init__(self, width: int, kernel_size: int, *, bias: bool, activation: str | None, dilation: int = 1) -> None:
        super().__init__()
        self.kernel_size = (kernel_size - 1) * dilation + 1
        self.dilation = dilation
        self.weight = nn.Parameter(torch.empty(width, 1, kernel_size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(width), requires_grad=False) if bias else None
        self.activation = activation
        self._activation = _unchanged if activation is None else ACTIVATION_FUNCTIONS[activation]
        self._taps: tuple[nn.Parameter, torch.Tensor] | None = None

    def forward(self, rows: torch.Tensor, batch: ForwardBatch, conv_state: torch.Tensor) -> torch.Tensor:
        """Convolve the batch's rows, each sequence behind its own tail.

        Args:
            rows: (T, C).
            batch: The step.
            conv_state: (slots, C, K-1) float32, or bfloat16 for native kernels; the tails of the batch's sequences
                are overwritten.

        Returns:
            (T, C) float32.
        """
        return self.convolve(rows, batch, conv_state)

    def convolve(self, rows: torch.Tensor, batch: ForwardBatch, conv_state: torch.Tensor) -> torch.Tensor:
        """Convolve the batch's rows; arguments and result as of ``forward``."""
        rows = rows.float()
        decodes = batch.num_decodes
        if not batch.prefills:
            return self._activation(self._decode(rows, batch.decode_state_slots, conv_state))
        out = torch.empty_like(rows)
        if decodes:
            out[:decodes] = self._decode(rows[:decodes], batch.decode_state_slots, conv_state)
        for chunk in batch.prefills:
            self._prefill(rows[chunk.start : chunk.stop], chunk, conv_state, out[chunk.start : chunk.stop])
        return self._activation(out)

    def taps(self) -> torch.Tensor:
        """(K, C) float32 weights, computed at the first call: they don't change after the load."""
        if self._taps is None or self._taps[0] is not self.weight:
            stored = self.weight.float().squeeze(1).t().contiguous()
            taps = stored
            if self.dilation > 1:
                taps = stored.new_zeros(self.kernel_size, stored.shape[1])
                taps[:: self.dilation] = stored
            self._taps = (self.weight, taps)
        return self._taps[1]

    def _decode(self, rows: torch.Tensor, slots: torch.Tensor, conv_state: torch.Tensor) -> torch.Tensor:
        out = (decode_windows(rows, slots, conv_state) * self.taps().t()).sum(2)
        return out if self.bias is None else out.add_(self.bias.float())

    def _prefill(self, rows: torch.Tensor, chunk: PrefillChunk, conv_state: torch.Tensor, out: torch.Tensor) -> None:
        """Shifted multiply-adds: on a CPU several times faster than a grouped conv1d."""
        length, taps = len(rows), self.taps()
        padded = behind_tail(rows, chunk, conv_state)
        torch.mul(padded[:length], taps[0], out=out)
        for shift in range(self.dilation, self.kernel_size, self.dilation):
            out.addcmul_(padded[shift : shift + length], taps[shift])
        if self.bias is not None:
            out.add_(self.bias.float())


def decode_windows(rows: torch.Tensor, slots: torch.Tensor, conv_state: torch.Tensor) -> torch.Tensor:
    """One row (B, C) of each decoding sequence to its last K inputs (B, C, K); ``conv_state`` advances."""
    window = torch.cat([conv_state.index_select(0, slots), rows.unsqueeze(2)], 2)
    conv_state.index_copy_(0, slots, window[:, :, 1:])
    return window


def behind_tail(rows: torch.Tensor, chunk: PrefillChunk, conv_state: torch.Tensor) -> torch.Tensor:
    """A chunk's rows (n, C) behind the last inputs before them (K - 1 + n, C); ``conv_state`` advances."""
    stored = conv_state[chunk.state_slot]
    tail = stored.t() if chunk.context_len else rows.new_zeros(stored.shape[::-1])
    padded = torch.cat([tail, rows])
    stored.copy_(padded[len(rows) :].t())
    return padded


class AddedConv1d(Layer):
    """scale · (conv(x) + x), with a causal depthwise convolution without bias and activation, in float32.

    Args:
        width: Channels C.
        kernel_size: Taps.
        scale: Multiplies the sum.
    """

    def __init__(self, width: int, kernel_size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.conv1d = CausalConv1d(width, kernel_size, bias=False, activation=None)

    def forward(self, rows: torch.Tensor, batch: ForwardBatch, conv_state: torch.Tensor) -> torch.Tensor:
        """(T, C) to the same in the dtype of ``rows``; ``conv_state`` as in ``CausalConv1d``."""
        rows = rows.contiguous()
        added: torch.Tensor = self.conv1d(rows, batch, conv_state) + rows.float()
        return (added if self.scale == 1.0 else added * self.scale).to(rows.dtype)
