"""Specs of residual streams that each mixer reads and adds to by gates of their own (HY 4).

Shape letters: h hidden, P streams.

Sources: https://arxiv.org/abs/2409.19606 (hyper-connections), and transformers' ``hy_v4``.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.parts import Shape, prefixed


@dataclass(frozen=True, slots=True)
class GatedStreamsSpec:
    """How a mixer reads the streams X and adds its result to them.

    With n = all streams side by side, divided by the root of the mean of their squares, and [a | b] = fn n,

        the mixer reads Σ (sigmoid(s₀ · a_i + base_i) + eps) · X_i,
        X_i becomes X_i + (magnitude · sigmoid(s₁ · b_i + base_(P + i)) + eps) · mixer(…).

    They begin as copies of the embedding, and end as such a sum.

    Attributes:
        num_streams: P.
        norm_eps: Added to that mean.
    """

    num_streams: int
    magnitude: float
    eps: float
    norm_eps: float

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters of the streams' end, by name within ``streams``."""
        return self._shapes(hidden_size, 1)

    def layer_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters of a layer, by name within ``hyper``."""
        shapes = self._shapes(hidden_size, 2)
        return {**prefixed("token", shapes), **prefixed("channel", shapes)}

    def _shapes(self, hidden_size: int, kinds: int) -> dict[str, Shape]:
        count = self.num_streams
        return {"fn": (kinds * count, count * hidden_size), "base": (kinds * count,), "scale": (kinds,)}
