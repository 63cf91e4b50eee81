"""DynamicConv1d: a short causal convolution whose taps depend on the token.

Source: transformers' ``inkling2``.

Shape letters: T rows, B decoding sequences, n rows of a chunk, C channels, G groups of channels, K taps.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, PrefillChunk
from inference.modelling.layers.layer import Layer


class DynamicConv1d(Layer):
    """y_t = scale · (x_t + Σ_j (w_j + d_tj) · x_{t-j}) for each channel; zeros before a sequence's start.

    The channels of a group share the numbers d, which the caller gives for each row.

    Args:
        width: C.
        kernel_size: K.
        scale: Multiplies the sum.
    """

    float32_parameters: ClassVar[frozenset[str]] = frozenset({"taps"})

    def __init__(self, width: int, kernel_size: int, scale: float) -> None:
        super().__init__()
        self.kernel_size, self.scale = kernel_size, scale
        self.taps = nn.Parameter(torch.empty(width, kernel_size), requires_grad=False)

    def forward(
        self, rows: torch.Tensor, dynamic: torch.Tensor, batch: ForwardBatch, conv_state: torch.Tensor
    ) -> torch.Tensor:
        """Convolve the batch's rows, each sequence behind its own tail.

        Args:
            rows: (T, C).
            dynamic: (T, G, K), d; the first tap is that of the row itself.
            batch: The step.
            conv_state: (slots, C, K-1) float32, the last inputs, oldest first; overwritten.

        Returns:
            (T, C) in the dtype of ``rows``.
        """
        values = rows.float()
        decodes = batch.num_decodes
        parts = [self._decode(values[:decodes], batch.decode_state_slots, conv_state)] if decodes else []
        parts += [self._prefill(values[chunk.start : chunk.stop], chunk, conv_state) for chunk in batch.prefills]
        windows = (parts[0] if len(parts) == 1 else torch.cat(parts)).flip(-1)
        groups = dynamic.shape[1]
        taps = self.taps.float().view(groups, -1, self.kernel_size) + dynamic.float().unsqueeze(2)
        mixed = (windows.reshape(len(rows), groups, -1, self.kernel_size) * taps).sum(-1).view(values.shape)
        return ((mixed + values) * self.scale).to(rows.dtype)

    def _decode(self, rows: torch.Tensor, slots: torch.Tensor, conv_state: torch.Tensor) -> torch.Tensor:
        """(B, C) to the last K inputs of each, (B, C, K)."""
        window = torch.cat([conv_state.index_select(0, slots), rows.unsqueeze(2)], 2)
        conv_state.index_copy_(0, slots, window[:, :, 1:])
        return window

    def _prefill(self, rows: torch.Tensor, chunk: PrefillChunk, conv_state: torch.Tensor) -> torch.Tensor:
        """A chunk's rows (n, C) to the last K inputs of each, (n, C, K)."""
        length, width = rows.shape
        stored = conv_state[chunk.state_slot]
        tail = stored.t() if chunk.context_len else rows.new_zeros(self.kernel_size - 1, width)
        padded = torch.cat([tail, rows])
        stored.copy_(padded[length:].t())
        return padded.unfold(0, self.kernel_size, 1)
