"""StepCosts: by how much a step that verifies is longer than a plain one, by its additional rows.

A straight line: something for leaving the replayed decode and for a draft model's passes, which is paid once however
many requests guess, and something for each row. In tokens: the time in which the engine would have generated so many
at the same number of requests without guessing.
"""

from __future__ import annotations

from dataclasses import dataclass

FIXED, PER_ROW = 0.7, 0.4
"""What is assumed before the first measurement; the fixed part per request that generates."""

MEMORY = 0.8
"""Weight of what was measured before, against what is measured now."""

STIFFNESS = 0.1
"""How far the numbers of rows have to lie apart to say something about the slope, as a share of their mean's square."""

MOST = 8.0
"""A step counts as at most so many plain ones longer: a hiccup of the machine must not end all guesses."""
HICCUP = 2.0
"""And as at most so many times what was expected."""


@dataclass(slots=True)
class _Line:
    """Sums over the measurements of one number of requests, older ones less."""

    weight: float = 0.0
    rows: float = 0.0
    tokens: float = 0.0
    rows_rows: float = 0.0
    rows_tokens: float = 0.0

    def add(self, rows: int, tokens: float) -> None:
        self.weight = MEMORY * self.weight + 1
        self.rows = MEMORY * self.rows + rows
        self.tokens = MEMORY * self.tokens + tokens
        self.rows_rows = MEMORY * self.rows_rows + rows * rows
        self.rows_tokens = MEMORY * self.rows_tokens + rows * tokens

    def fit(self) -> tuple[float, float]:
        """Least squares, drawn towards a line of which half is fixed; neither part is negative."""
        rows, tokens = self.rows / self.weight, self.tokens / self.weight
        stiffness = STIFFNESS * rows * rows
        spread = self.rows_rows / self.weight - rows * rows
        together = self.rows_tokens / self.weight - rows * tokens
        slope = (together + stiffness * 0.5 * tokens / rows) / (spread + stiffness)
        slope = min(max(slope, 0.0), tokens / rows)
        return tokens - slope * rows, slope


class StepCosts:
    """The costs of one engine, by number of requests."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._latest = (FIXED, PER_ROW)

    def of(self, num_requests: int) -> tuple[float, float]:
        """The fixed cost of a step, and that of each row; where nothing is known, as found at another number."""
        if self.is_known(num_requests):
            return self._lines[num_requests].fit()
        fixed, per_row = self._latest
        return fixed * num_requests, per_row

    def is_known(self, num_requests: int) -> bool:
        """Whether a step of so many requests was measured."""
        line = self._lines.get(num_requests)
        return line is not None and line.weight > 0

    def add(self, num_requests: int, rows: int, tokens: float) -> float:
        """Book a step; returns what it counts as."""
        fixed, per_row = self.of(num_requests)
        expected = HICCUP * (fixed + per_row * rows) + 0.1 * num_requests
        line = self._lines.get(num_requests)
        if line is None:
            # The first one of its number prepares kernels and touches memory that nobody has used, so the next ones
            # won't cost as much.
            self._lines[num_requests] = _Line()
            return min(tokens, expected)
        tokens = min(tokens, MOST * num_requests, expected if line.weight else tokens)
        line.add(rows, tokens)
        fixed, per_row = line.fit()
        self._latest = fixed / num_requests, per_row
        return tokens
