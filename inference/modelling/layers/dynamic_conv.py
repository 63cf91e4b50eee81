"""DynamicConv1d: a short causal convolution whose taps depend on the token.

Source: transformers' ``inkling2``.

Shape letters: T rows, B decoding sequences, n rows of a chunk, C channels, G groups of channels, K taps.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch
from inference.modelling.layers.conv import behind_tail, decode_windows
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
        parts = [decode_windows(values[:decodes], batch.decode_state_slots, conv_state)] if decodes else []
        for chunk in batch.prefills:
            padded = behind_tail(values[chunk.start : chunk.stop], chunk, conv_state)
            parts.append(padded.unfold(0, self.kernel_size, 1))
        windows = (parts[0] if len(parts) == 1 else torch.cat(parts)).flip(-1)
        groups = dynamic.shape[1]
        taps = self.taps.float().view(groups, -1, self.kernel_size) + dynamic.float().unsqueeze(2)
        mixed = (windows.reshape(len(rows), groups, -1, self.kernel_size) * taps).sum(-1).view(values.shape)
        return ((mixed + values) * self.scale).to(rows.dtype)
