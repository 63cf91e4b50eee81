"""Specs of several residual streams of which each layer computes one (Gemma 3n's AltUp), and its low-rank residual.

Shape letters: h hidden, P streams, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.parts import NormSpec, Shape, prefixed


@dataclass(frozen=True, slots=True)
class AltUpSpec:
    """What is around the mixers of a layer: all streams are predicted, one is computed, all are corrected by it.

    With a = the active stream as predicted and n = token_norm(a), the layer computes

        y = (a + token_post_norm(token_mixer(n)) + n + norm(laurel(n))) / √2,

    then its channel mixer as usual. What it adds of its own input goes to all streams but the first.

    Sources: https://arxiv.org/abs/2301.13310 (AltUp), https://arxiv.org/abs/2411.07501 (LAuReL), and transformers'
    ``gemma3n``.

    Attributes:
        num_streams: P.
        active: Number of the stream that the layers compute.
        laurel_rank: r.
        norm: Of what the streams' router reads, and of the low-rank residual.
        has_output_scale: The layer's own input is gated by the active stream times learned numbers.
    """

    num_streams: int
    active: int
    laurel_rank: int
    norm: NormSpec
    has_output_scale: bool = True

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``altup``."""
        count, rank = self.num_streams, self.laurel_rank
        shapes: dict[str, Shape] = {
            "prediction.weight": (count * count, count),
            "correction.weight": (count, count),
            "router.weight": (count, hidden_size),
            **prefixed("router_norm", self.norm.parameter_shapes(hidden_size)),
            "laurel_down_proj.weight": (rank, hidden_size),
            "laurel_up_proj.weight": (hidden_size, rank),
            **prefixed("laurel_norm", self.norm.parameter_shapes(hidden_size)),
        }
        if self.has_output_scale:
            shapes["output_scale"] = (hidden_size,)
        return shapes


@dataclass(frozen=True, slots=True)
class StreamsSpec:
    """How the streams begin as projections of the embedding, and end as the mean of projections.

    Each projection is brought to the magnitude of the first stream.

    Attributes:
        num_streams: P.
    """

    num_streams: int

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``streams``; the first stream has no projections."""
        shape = (self.num_streams - 1, hidden_size, hidden_size)
        return {"enter": shape, "leave": shape}
