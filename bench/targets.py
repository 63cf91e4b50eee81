"""The targets on a CPU: what is divided by what, and what the ratio has to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.figures import Figures, Interval, difference, ratio

_OPENVINO = ("openvino fp16", "openvino int8")
_RECURRENT = ("mamba2", "hybrid")


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table.

    Attributes:
        model: Of ``bench.weights.CHECKPOINTS``.
        ours: Rows of which the best counts.
        peers: Rows of which the best counts; none: the figure itself.
        limit: What the median has to reach.
        at_most: It must not exceed ``limit`` instead.
        other: Figure of the other side, if it is another.
        subtract: The difference counts, not the ratio.
        unit: ``×`` for ratios.
    """

    model: str
    ours: tuple[str, ...]
    figure: str
    peers: tuple[str, ...]
    limit: float
    at_most: bool = False
    other: str | None = None
    subtract: bool = False
    unit: str = "×"

    @property
    def text(self) -> str:
        """What the line says on its left."""
        ours = " or ".join(self.ours)
        if self.peers:
            return f"{self.model}, {self.figure}: {ours} / {' or '.join(self.peers)}"
        return f"{self.model}, {ours}: {self.figure}" + (f" against {self.other}" if self.other else "")

    def value(self, figures: Figures) -> Interval | None:
        """Over the rounds that have both sides; None without such a round."""
        mine = figures.best(self.model, self.ours, self.figure)
        if not self.peers and self.other is None:
            return Interval.of(list(mine.values())) if mine else None
        theirs = figures.best(self.model, self.peers or self.ours, self.other or self.figure)
        return (difference if self.subtract else ratio)(mine, theirs)

    def met(self, value: Interval) -> bool:
        return value.median <= self.limit if self.at_most else value.median >= self.limit


def _targets() -> Iterator[Target]:
    bf16, int8, int4 = ("blazr bf16",), ("blazr int8",), ("blazr int4",)
    best = bf16 + int8
    yield Target("llama-1b", bf16, "decode1", ("llama.cpp bf16",), 1.15)
    yield Target("llama-1b", int8, "decode1", ("llama.cpp q8_0",), 1.0)
    yield Target("llama-1b", int8, "decode1 of bound", (), 0.8, unit="")
    yield Target("llama-1b", int4, "decode1", ("llama.cpp q4_k_m",), 1.3)
    yield Target("llama-1b", bf16, "prefill512", ("llama.cpp bf16",), 5.0)
    yield Target("llama-1b", int8, "prefill512", ("llama.cpp q8_0",), 2.0)
    yield Target("llama-1b", int8, "http8", ("llama.cpp q8_0",), 2.0)
    yield Target("llama-1b", int8, "http32", ("llama.cpp q8_0",), 2.7)
    for model, ours in (("llama-1b", int8), ("llama-135m", best)):
        yield Target(model, ours, "http8", _OPENVINO, 1.2)
        yield Target(model, ours, "http32", _OPENVINO, 1.2)
        yield Target(model, best, "prefill512", _OPENVINO, 1.0)
    yield Target("llama-135m", bf16, "decode1", ("llama.cpp bf16",), 1.0)
    yield Target("llama-135m", int8, "decode1", ("llama.cpp q8_0",), 0.8)
    for model in _RECURRENT:
        yield Target(model, bf16, "decode1", ("transformers",), 2.5)
        yield Target(model, bf16, "decode1", ("llama.cpp bf16",), 1.3)
        yield Target(model, int8, "decode1", ("llama.cpp q8_0",), 1.0)
        yield Target(model, bf16, "decode32", ("transformers",), 4.0)
        yield Target(model, bf16, "prefill512", ("transformers",), 2.0)
        yield Target(model, bf16, "prefill512", ("llama.cpp bf16",), 1.5)
    yield Target("nano", bf16, "decode1 of bound", (), 0.6, unit="")
    for model in ("llama-1b", "llama-135m"):
        ours = int8 if model == "llama-1b" else bf16
        yield Target(model, ours, "http32", (), 0.95, other="bare32")
        yield Target(
            model,
            ours,
            "http first token s",
            (),
            0.008,
            at_most=True,
            other="bare first token s",
            subtract=True,
            unit=" s",
        )
        yield Target(model, ours, "own share", (), 0.05, at_most=True, unit="")
    yield Target("llama-1b", int8, "peak of budget", (), 1.0, at_most=True, unit="")
    yield Target("llama-1b", int8, "load s", (), 1.3, at_most=True, other="read s")


TARGETS = tuple(_targets())
"""In the order in which they are printed."""
