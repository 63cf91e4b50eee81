"""TokenMixtureOfExperts: experts that a table chooses by the token's id.

Source: transformers' ``deepseek_v4``.

Shape letters: T rows, h hidden, V vocabulary, E experts, k experts of a token.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from inference.errors import CorruptCheckpoint
from inference.modelling.layers.moe import MixtureOfExperts, expert_scores, expert_weights
from inference.modelling.specs.token_moe import TokenMoESpec


class TokenMixtureOfExperts(MixtureOfExperts):
    """See ``TokenMoESpec``.

    Args:
        spec: Rules and sizes.
        hidden_size: h.
    """

    integer_parameters: ClassVar[frozenset[str]] = frozenset({"token_experts"})

    def __init__(self, spec: TokenMoESpec, hidden_size: int) -> None:
        super().__init__(spec, hidden_size)
        table = torch.empty(spec.vocab_size, spec.top_k, dtype=torch.int64)
        self.token_experts = nn.Parameter(table, requires_grad=False)

    def check_values(self, name: str) -> None:
        """Refuse a table that names experts which aren't there.

        Args:
            name: Of this layer.

        Raises:
            CorruptCheckpoint: A number is out of range.
        """
        low, high = (int(number) for number in self.token_experts.aminmax())
        if low < 0 or high >= self.spec.num_experts:
            raise CorruptCheckpoint(
                f"the table of each token's experts (tid2eid) has numbers from {low} to {high}, but there are "
                f"{self.spec.num_experts} experts, from 0 on; the file is damaged.",
                param=name,
            )

    def forward(self, hidden: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """(T, h) and the rows' token ids (T,) to (T, h)."""
        chosen = self.token_experts[input_ids]
        weights = expert_weights(expert_scores(self.router(hidden), self.spec), chosen, self.spec)
        mixed: torch.Tensor = self.experts(hidden, weights, chosen)
        return mixed if self.shared_expert is None else mixed + self._shared(hidden)
