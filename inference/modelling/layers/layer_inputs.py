"""Inputs that each layer has of its own: made once a step from the tokens, gated in by each layer at its end.

Shape letters: T rows, h hidden, L layers, p width of a layer's input.

Source: transformers' ``gemma3n`` and ``gemma4`` (per-layer embeddings).
"""

from __future__ import annotations

import torch

from inference.modelling.layers.layer import Layer
from inference.modelling.layers.linear import Embedding, Linear
from inference.modelling.layers.mlp import ACTIVATION_FUNCTIONS
from inference.modelling.layers.norm import Norm
from inference.modelling.specs.layer_inputs import LayerInputSpec, LayerInputsSpec


class LayerInputs(Layer):
    """The inputs of all layers.

    Args:
        spec: Sizes.
        hidden_size: h.
    """

    def __init__(self, spec: LayerInputsSpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.table = Embedding(spec.rows, spec.num_layers * spec.width, is_head=False)
        self.projection = Linear(hidden_size, spec.num_layers * spec.width)
        self.norm = Norm(spec.norm, spec.width)
        self.projection_multiplier = hidden_size**-0.5

    def forward(self, ids: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        """(T,) tokens and their (T, h) embedding to (T, L, p)."""
        spec = self.spec
        shape = (-1, spec.num_layers, spec.width)
        projected = self.norm((self.projection(embedding) * self.projection_multiplier).view(shape))
        looked_up = self.table(ids.masked_fill(ids >= spec.rows, 0)).view(shape) * spec.width**0.5
        inputs: torch.Tensor = (projected + looked_up) * 2**-0.5
        return inputs


class LayerInput(Layer):
    """One layer's use of its input.

    Args:
        spec: Sizes and activation.
        hidden_size: h.
    """

    def __init__(self, spec: LayerInputSpec, hidden_size: int) -> None:
        super().__init__()
        self.gate = Linear(hidden_size, spec.width)
        self.projection = Linear(spec.width, hidden_size)
        self.norm = Norm(spec.norm, hidden_size)
        self.act = ACTIVATION_FUNCTIONS[spec.activation]

    def forward(self, hidden: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """(T, h) of the stream and (T, p) of the layer's own to the (T, h) that is added to the stream."""
        out: torch.Tensor = self.norm(self.projection(self.act(self.gate(hidden)) * own))
        return out
