"""Recurrent layers with random weights, run over one sequence in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inference.modelling.forward_batch import ForwardBatch, LayerState, PrefillChunk
from inference.modelling.layers.recurrent import RecurrentMixer

HIDDEN, SLOT = 12, 2
PIECES = [(9,), (1, 1, 7), (4, 1, 1, 3)]


def fill(layer: RecurrentMixer) -> RecurrentMixer:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in layer.named_parameters():
        scale = 0.5 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        if name.endswith("norm.weight"):
            parameter.add_(1.0)
    return layer


def hidden_rows(count: int = 9) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(2))


def run_in_pieces(layer: RecurrentMixer, hidden: torch.Tensor, pieces: Sequence[int]) -> torch.Tensor:
    """One sequence's rows, a piece a step, in a slot that held another sequence; the other slots stay as they are."""
    state: LayerState = {part.name: torch.full((4, *part.shape), 7.0) for part in layer.spec.state()}
    done, parts = 0, []
    for count in pieces:
        zeros, decodes = torch.zeros(count, dtype=torch.int64), int(count == 1 and done > 0)
        chunk = PrefillChunk(0, count, done, 0, SLOT)
        batch = ForwardBatch(zeros, zeros, zeros, torch.tensor([SLOT]), decodes, () if decodes else (chunk,))
        parts.append(layer(hidden[done : done + count], batch, state))
        done += count
    for name, tensor in state.items():
        assert (tensor[[0, 1, 3]] == 7.0).all(), f"{name} of another sequence was written"
    return torch.cat(parts)


def convolved(conv: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """The convolution over a whole sequence."""
    zeros = torch.zeros(len(rows), dtype=torch.int64)
    chunk = PrefillChunk(0, len(rows), 0, 0, 0)
    batch = ForwardBatch(zeros, zeros, zeros, zeros[:1], 0, (chunk,))
    return conv(rows, batch, torch.zeros(1, rows.shape[1], conv.kernel_size - 1))
