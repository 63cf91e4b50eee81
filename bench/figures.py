"""Samples of a benchmark run: by model, implementation and figure, one value per round."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Interval:
    """Median, smallest and greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        """The median, with both ends if they are others."""
        return f"{self.median:.2f}" if self.low == self.high else self.whole()

    def whole(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def interval_of(values: Sequence[float], digits: int = 2) -> str:
    """Write the median and both ends."""
    return Interval.of(values).whole(digits)


@dataclass(slots=True)
class Figures:
    """All samples.

    Attributes:
        samples: Model, implementation, figure, round: value. Rounds of different runs have different names.
        failures: Model, implementation, task: the implementation's own words.
    """

    machine: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, dict[str, dict[str, dict[str, float]]]] = field(default_factory=dict)
    failures: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)

    def add(self, model: str, implementation: str, figure: str, moment: str, value: float) -> None:
        rows = self.samples.setdefault(model, {}).setdefault(implementation, {})
        rows.setdefault(figure, {})[moment] = value
        self.failures.get(model, {}).get(implementation, {}).pop(figure, None)

    def fail(self, model: str, implementation: str, task: str, words: str) -> None:
        self.failures.setdefault(model, {}).setdefault(implementation, {})[task] = words

    def values(self, model: str, implementation: str, figure: str) -> dict[str, float]:
        """Values by round, none if it wasn't measured."""
        return self.samples.get(model, {}).get(implementation, {}).get(figure, {})

    def save(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, file: Path) -> Figures:
        """What ``save`` wrote."""
        content = json.loads(file.read_text())
        return cls(content["machine"], content["samples"], content["failures"])


def ratio(first: dict[str, float], second: dict[str, float]) -> Interval | None:
    """Spread of the ratios of rounds that have both; None without such a round."""
    common = [moment for moment in first if moment in second]
    return Interval.of([first[moment] / second[moment] for moment in common]) if common else None


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values doesn't exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]
