"""Parallel: token mixers side by side, which read the same rows and whose results are added."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from inference.modelling.forward_batch import ForwardBatch, LayerState
from inference.modelling.layers.layer import Layer
from inference.modelling.specs.parallel import MixerSpec, ParallelSpec


class Parallel(Layer):
    """Σ r · mixer(f · hidden), each mixer under the name of its kind.

    Args:
        spec: The branches with their factors f and r.
        hidden_size: h.
        build: Makes a mixer from its spec and h.
    """

    def __init__(self, spec: ParallelSpec, hidden_size: int, build: Callable[[MixerSpec, int], nn.Module]) -> None:
        super().__init__()
        self.spec = spec
        for branch in spec.branches:
            self.add_module(branch.mixer.kind, build(branch.mixer, hidden_size))

    def forward(self, hidden: torch.Tensor, batch: ForwardBatch, state: LayerState) -> torch.Tensor:
        """(T, h) to (T, h); the states of all mixers advance."""
        mixed: torch.Tensor | None = None
        for branch in self.spec.branches:
            rows = hidden if branch.input_multiplier == 1.0 else hidden * branch.input_multiplier
            part: torch.Tensor = getattr(self, branch.mixer.kind)(rows, batch, state)
            if branch.output_multiplier != 1.0:
                part = part * branch.output_multiplier
            mixed = part if mixed is None else mixed + part
        assert mixed is not None, "a layer without mixers"
        return mixed
