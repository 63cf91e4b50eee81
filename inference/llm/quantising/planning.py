"""Plan which form each part gets: the least predicted divergence within a number of bytes.

The divergences of single parts add up approximately (Malinovskii et al. 2024, https://arxiv.org/abs/2411.17525), so a
plan is a knapsack with one choice per part. It is solved exactly on a grid of bytes: every choice's bytes are rounded
up to cells, which a plan therefore never exceeds, and the least sum for each number of cells follows part by part. The
grid doesn't depend on the limit, so more bytes never predict a higher divergence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

NUM_CELLS = 1 << 16
"""Of the grid, from the smallest plan to the largest: each part of a plan wastes half a cell on average."""
STORED = "stored"
"""The choice to leave a part as it is."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One form of a part.

    Attributes:
        form: Its name.
        size_bytes: Bytes of the part in it.
        divergence: Mean KL divergence if this part alone has it, in nats.
    """

    form: str
    size_bytes: int
    divergence: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A form for each part.

    Attributes:
        forms: By the part's name.
        size_bytes: Bytes of all parts, with the fixed bytes.
        predicted: Sum of the divergences, in nats.
    """

    forms: Mapping[str, str]
    size_bytes: int
    predicted: float


class Planner:
    """Find the best plans of a checkpoint.

    Args:
        choices: The forms of each part, by the part's name.
        fixed_bytes: Bytes that every plan needs besides.
    """

    def __init__(self, choices: Mapping[str, Sequence[Choice]], fixed_bytes: int = 0) -> None:
        self._fixed_bytes = fixed_bytes
        self._choices = {name: sorted(found, key=lambda one: one.size_bytes) for name, found in choices.items()}
        self.min_bytes = fixed_bytes + sum(found[0].size_bytes for found in self._choices.values())
        self.max_bytes = fixed_bytes + sum(found[-1].size_bytes for found in self._choices.values())
        self._cell = max(1, -(-(self.max_bytes - self.min_bytes) // NUM_CELLS))
        self._best, self._chosen = self._solve()

    def within(self, size_bytes: int) -> Plan | None:
        """Return the plan of the lowest predicted divergence within a number of bytes; None: the smallest has more."""
        if size_bytes < self.min_bytes:
            return None
        cell = min((size_bytes - self.min_bytes) // self._cell, len(self._best) - 1)
        forms: dict[str, str] = {}
        total, predicted = self.min_bytes, 0.0
        for (name, found), row in zip(reversed(self._choices.items()), reversed(self._chosen), strict=True):
            choice = found[row[cell]]
            forms[name] = choice.form
            extra = choice.size_bytes - found[0].size_bytes
            total += extra
            predicted += choice.divergence
            cell -= -(-extra // self._cell)
        return Plan(dict(reversed(forms.items())), total, predicted)

    def uniform(self, form: str) -> Plan:
        """Return the plan that gives every part the same form."""
        choices = {name: next(one for one in found if one.form == form) for name, found in self._choices.items()}
        size = self._fixed_bytes + sum(choice.size_bytes for choice in choices.values())
        return Plan(dict.fromkeys(choices, form), size, sum(choice.divergence for choice in choices.values()))

    def limits(self) -> list[int]:
        """Return the numbers of bytes, ascending, at which the best plan changes."""
        changes = np.flatnonzero(np.diff(self._best) < 0) + 1
        return [self.min_bytes + cell * self._cell for cell in (0, *map(int, changes))]

    def _solve(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the lowest sum for each number of cells, and the choice of each part in it."""
        extras = [
            [-(-(choice.size_bytes - found[0].size_bytes) // self._cell) for choice in found]
            for found in self._choices.values()
        ]
        num_cells = 1 + sum(row[-1] for row in extras)
        best = np.zeros(num_cells)
        chosen = []
        for found, cells in zip(self._choices.values(), extras, strict=True):
            sums = np.full((len(found), num_cells), np.inf)
            for row, (choice, cell) in enumerate(zip(found, cells, strict=True)):
                sums[row, cell:] = best[: num_cells - cell] + choice.divergence
            row_of_least = sums.argmin(0)
            chosen.append(row_of_least.astype(np.int8))
            best = sums[row_of_least, np.arange(num_cells)]
        return best, chosen
