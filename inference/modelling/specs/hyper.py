"""Specs of hyper-connections: several residual streams, of which each mixer reads a mix (Qwen4-Exp).

Shape letters: T tokens, h hidden, P streams, r rank.

Sources: https://arxiv.org/abs/2409.19606 (hyper-connections), and transformers' ``qwen4_exp``.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.parts import NormSpec, Shape, prefixed


@dataclass(frozen=True, slots=True)
class HyperConnectionSpec:
    """How a mixer reads the streams X and adds its result to them.

    With N = norm(X), each stream by its own weights, and n = N, its streams one behind the other,

        u = sigmoid(up(silu(down(n) / P))),  the mixer reads the mean over the streams of u · N,
        w = 2 · sigmoid(inject(n) / P),  X_i becomes X_i + w_i · mixer(…).

    Attributes:
        num_streams: P.
        rank: r.
        norm: Of each stream.
    """

    num_streams: int
    rank: int
    norm: NormSpec

    def reading_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters that reading takes."""
        width = self.num_streams * hidden_size
        return {
            **prefixed("norm", self.norm.parameter_shapes(self.num_streams, hidden_size)),
            "down_proj.weight": (self.rank, width),
            "up_proj.weight": (width, self.rank),
        }

    def layer_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters of a layer, by name within ``hyper``: for each mixer, reading and adding."""
        shapes = self.reading_shapes(hidden_size)
        shapes["inject.weight"] = (self.num_streams, self.num_streams * hidden_size)
        return {**prefixed("token", shapes), **prefixed("channel", shapes)}


@dataclass(frozen=True, slots=True)
class HyperStreamsSpec:
    """How the streams begin, each as the embedding, and end: the head of the logits reads a mix of them.

    Attributes:
        connection: How the mix is read.
    """

    connection: HyperConnectionSpec

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``streams``."""
        return self.connection.reading_shapes(hidden_size)
