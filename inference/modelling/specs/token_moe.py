"""Spec of experts that are chosen by a table of the tokens (DeepSeek V4's first layers).

Shape letters: h hidden, V vocabulary, k experts of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import Shape


@dataclass(frozen=True, slots=True)
class TokenMoESpec(MoESpec):
    """Experts that a token's id chooses; their weights are the router's scores, as in ``MoESpec``.

    Attributes:
        vocab_size: V, rows of the table.
    """

    kind: ClassVar[str] = "token_moe"
    vocab_size: int = 0

    def parameter_shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Those of ``MoESpec``, and the table of each token's experts."""
        return {**MoESpec.parameter_shapes(self, hidden_size), "token_experts": (self.vocab_size, self.top_k)}

    def integer_parameters(self) -> tuple[str, ...]:
        """Those that are int64."""
        return ("token_experts",)
