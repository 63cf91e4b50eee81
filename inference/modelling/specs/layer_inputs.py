"""Specs of inputs that each layer has of its own, from a second embedding of the token (Gemma 3n, Gemma 4).

Shape letters: h hidden, L layers, p width of a layer's input.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.parts import NormSpec, Shape, prefixed


@dataclass(frozen=True, slots=True)
class LayerInputsSpec:
    """The inputs of all layers, made once from the token and its embedding x:

        (norm(projection(x) / √h) + √p · table[token]) / √2, with the norm over each layer's p values.

    Attributes:
        rows: Of the table; tokens from this number on have its first row.
        width: p.
        num_layers: L.
    """

    rows: int
    width: int
    num_layers: int
    norm: NormSpec

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``layer_inputs``."""
        columns = self.num_layers * self.width
        return {
            "table.weight": (self.rows, columns),
            "projection.weight": (columns, hidden_size),
            **prefixed("norm", self.norm.parameter_shapes(self.width)),
        }


@dataclass(frozen=True, slots=True)
class LayerInputSpec:
    """What a layer does with its input e at its end: x + norm(projection(act(gate(x)) · e)).

    Attributes:
        width: p.
    """

    width: int
    activation: str
    norm: NormSpec

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``layer_input``."""
        return {
            "gate.weight": (self.width, hidden_size),
            "projection.weight": (hidden_size, self.width),
            **prefixed("norm", self.norm.parameter_shapes(hidden_size)),
        }
