"""Parts of attention that few families have: differences of heads, and heads that are chosen like experts.

Shape letters: h hidden, E experts, V key/value heads, P head width.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.modelling.specs.parts import NormSpec, Shape


@dataclass(frozen=True, slots=True)
class DifferenceSpec:
    """The second half of the heads is subtracted from the first (DiffLlama).

    Key/value heads j and j + V/2 have their values side by side, 2P wide. Of query heads i and i + H/2 remains

        (1 - start) · norm(head_i - λ · head_(i + H/2)),  λ = exp(q1 · k1) - exp(q2 · k2) + start,

    with learned q1, k1, q2 and k2, the rows of ``lambdas``.

    Source: https://arxiv.org/abs/2410.05258, and transformers' ``diffllama``.
    """

    start: float
    norm: NormSpec


@dataclass(frozen=True, slots=True)
class HeadExpertsSpec:
    """Experts with V query heads each and a projection of their own behind them; all share keys and values (JetMoE).

    A row's heads are those of its ``top_k`` experts, and its output is their sum, weighted by a softmax over their
    logits, plus a bias.

    Source: https://arxiv.org/abs/2404.07413, and transformers' ``jetmoe``.
    """

    num_experts: int
    top_k: int

    def parameter_shapes(self, hidden_size: int, width: int) -> dict[str, Shape]:
        """Shapes of the parameters, by name within ``head_experts``; ``width``: V · P."""
        return {
            "router.weight": (self.num_experts, hidden_size),
            "experts.up_proj": (self.num_experts, width, hidden_size),
            "experts.down_proj": (self.num_experts, hidden_size, width),
            "bias": (hidden_size,),
        }
