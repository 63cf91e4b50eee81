"""Spec of residual streams that are mixed anew around each mixer (DeepSeek V4's mHC).

Shape letters: h hidden, P streams.

Sources: https://arxiv.org/abs/2512.24880 (manifold-constrained hyper-connections), and transformers' ``deepseek_v4``.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.parts import Shape, prefixed


@dataclass(frozen=True, slots=True)
class SinkhornStreamsSpec(GatedStreamsSpec):
    """How a mixer reads the streams X, and what they become.

    With n as in ``GatedStreamsSpec`` and [a | b | c] = fn n, c a matrix (P, P),

        the mixer reads Σ (sigmoid(s₀ · a_i + base_i) + eps) · X_i,
        X_k becomes magnitude · sigmoid(s₁ · b_k + base_(P + k)) · mixer(…) + Σ_j M_jk · X_j,

    where M is softmax(s₂ · c + its base) + eps over each row, whose columns, rows, columns … are divided by their sums
    + eps: the columns ``iterations`` times, the rows once less.

    Attributes:
        iterations: Of Sinkhorn and Knopp's normalisation.
    """

    iterations: int = 20

    def layer_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters of a layer, by name within ``hyper``."""
        count = self.num_streams
        rows = (2 + count) * count
        shapes: dict[str, Shape] = {"fn": (rows, count * hidden_size), "base": (rows,), "scale": (3,)}
        return {**prefixed("token", shapes), **prefixed("channel", shapes)}


@dataclass(frozen=True, slots=True)
class MeanStreamsSpec:
    """Streams that begin as copies of the embedding and end as their mean (GLM-5.3).

    Attributes:
        num_streams: P.
    """

    num_streams: int

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """None."""
        return {}
