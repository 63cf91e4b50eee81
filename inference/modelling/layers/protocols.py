"""The two interfaces that a layer type implements."""

from __future__ import annotations

from typing import Protocol

import torch

from inference.modelling.forward_batch import ForwardBatch, LayerState


class TokenMixer(Protocol):
    """Mixes information along each sequence: attention, MLA, Mamba.

    Its parameter names are those of its spec's ``parameter_shapes``; its constructor takes (spec, hidden_size).
    """

    def __call__(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """Compute the batch's rows and advance the state of their sequences in place.

        Args:
            hidden: (T, h), normed.
            batch: The step.
            state: Tensors named and shaped as the spec's ``state()``, with the physical slot as first axis.

        Returns:
            (T, h).
        """
        ...


class ChannelMixer(Protocol):
    """Works on each row alone: MLP, MoE. Its constructor takes (spec, hidden_size)."""

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(T, h) normed to (T, h)."""
        ...
