"""ModuleDelta: what one adapter adds to the product of one module, in plain PyTorch.

y' = g · (y - b) + b + offset + Σ scale · B (A x), the terms each to rows of their own; g is DoRA's magnitude over the
length of the changed row, b the module's bias. Source: LoRA, https://arxiv.org/abs/2106.09685; DoRA,
https://arxiv.org/abs/2402.09353.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Term:
    """scale · B (A x), for rows ``first_row`` and following of a module's output.

    Attributes:
        a: (r, inputs).
        b: (r, rows), B transposed; DoRA's factor is in it.
        scale: Of the product.
        scaling: Numbers of the module and of the adapter among an X-LoRA's scalings, of which one multiplies each row
            of the product; None: the product stands for itself.
    """

    a: torch.Tensor
    b: torch.Tensor
    first_row: int
    scale: float
    scaling: tuple[int, int] | None = None

    @property
    def nbytes(self) -> int:
        """Memory of both factors."""
        return self.a.nbytes + self.b.nbytes

    def of(self, hidden: torch.Tensor, scalings: torch.Tensor | None = None) -> torch.Tensor:
        """(n, inputs) to (n, rows) float32; ``scalings`` (n, modules, adapters) are those of an X-LoRA."""
        return self.scaled(functional.linear(hidden, self.a).float() * self.scale, scalings) @ self.b.float()

    def scaled(self, values: torch.Tensor, scalings: torch.Tensor | None) -> torch.Tensor:
        """(n, w), each row times the term's own number of (n, modules, adapters) scalings, if it has one."""
        if self.scaling is None:
            return values
        assert scalings is not None
        module, adapter = self.scaling
        return values * scalings[:, module, adapter].unsqueeze(1)


@dataclass(slots=True)
class ModuleDelta:
    """What an adapter changes of one module.

    Attributes:
        terms: Low-rank products.
        gain: (outputs,) float32, g - 1; None: 0.
        offset: (outputs,) float32, added; None: 0.
        whole: (outputs, inputs), the matrix in the place of the module's; None: the module's own.
        experts: Terms by parameter and expert, of a stack of experts.
        matrix: (outputs, inputs), the changed matrix of a module that isn't only multiplied by.
    """

    terms: list[Term] = field(default_factory=list)
    gain: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    whole: torch.Tensor | None = None
    experts: dict[tuple[str, int], list[Term]] = field(default_factory=dict)
    matrix: torch.Tensor | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether its products are multiplied by scalings of their own, row by row."""
        return any(term.scaling is not None for term in self.terms)

    @property
    def nbytes(self) -> int:
        """Memory of all parts."""
        terms = [*self.terms, *(term for found in self.experts.values() for term in found)]
        parts = (self.gain, self.offset, self.whole, self.matrix)
        return sum(term.nbytes for term in terms) + sum(part.nbytes for part in parts if part is not None)

    def changed(
        self,
        out: torch.Tensor,
        hidden: torch.Tensor,
        bias: torch.Tensor | None,
        scalings: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The module's rows (n, outputs) as the adapter has them.

        Args:
            out: What the module gives.
            hidden: (n, inputs), what it read.
            bias: That is in ``out``.
            scalings: (n, modules, adapters) of an X-LoRA.
        """
        values = out.float()
        if self.whole is not None:
            values = functional.linear(hidden, self.whole).float()
            values = values if bias is None else values + bias.float()
        if self.gain is not None:
            values = values + self.gain * (values if bias is None else values - bias.float())
        if self.offset is not None:
            values = values + self.offset
        for term in self.terms:
            values[:, term.first_row : term.first_row + term.b.shape[1]] += term.of(hidden, scalings)
        return values.to(out.dtype)


def add_terms(out: torch.Tensor, hidden: torch.Tensor, terms: list[Term]) -> torch.Tensor:
    """(n, outputs) with terms of (n, inputs) added, in the dtype of ``out``."""
    values = out.float()
    for term in terms:
        values[:, term.first_row : term.first_row + term.b.shape[1]] += term.of(hidden)
    return values.to(out.dtype)
