"""Lay out the held-out loss of a run's checkpoints as a drawing for its page: loss over training steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from models_registry.curves import HEIGHT, WIDTH, Tick
from models_registry.models import RunStep

LEFT, RIGHT, TOP, BOTTOM = 72, 36, 16, 56
MAX_TICKS = 6


@dataclass(frozen=True, slots=True)
class LossPoint:
    """The loss of a checkpoint.

    Attributes:
        step: The checkpoint.
        x, y: Its place in the drawing.
        is_lowest: Whether no other has a lower loss.
    """

    step: RunStep
    x: float
    y: float
    is_lowest: bool


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The drawing.

    Attributes:
        points: In the order of training.
        line: For a polyline.
        columns, rows: Lines of the axes.
        lowest: The checkpoint with the lowest loss.
        width, height: Of the drawing.
        left, right, top, bottom: Edges of the area of the curve.
    """

    points: Sequence[LossPoint]
    line: str
    columns: Sequence[Tick]
    rows: Sequence[Tick]
    lowest: RunStep
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def draw_losses(steps: Sequence[RunStep]) -> LossCurve | None:
    """Return the drawing of the measured checkpoints; None: fewer than two are.

    The end of a training doesn't say its step: its point stands where the last numbered one does.
    """
    measured = [step for step in steps if step.loss is not None and math.isfinite(step.loss)]
    if len(measured) < 2:
        return None
    last = max((step.number for step in measured if step.number is not None), default=0)
    numbers = [last if step.number is None else step.number for step in measured]
    losses = [step.loss or 0.0 for step in measured]
    columns, rows = nice_ticks(min(numbers), max(numbers)), nice_ticks(min(losses), max(losses))
    first, end = min(numbers[0], min(numbers)), max(max(numbers), min(numbers) + 1)
    low, high = min(rows[0], min(losses)), max(rows[-1], max(losses))
    high = high if high > low else low + 1.0

    def across(number: float) -> float:
        return round(LEFT + (number - first) / (end - first) * (WIDTH - LEFT - RIGHT), 1)

    def down(loss: float) -> float:
        return round(TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    lowest = measured[losses.index(min(losses))]
    points = [
        LossPoint(step, across(number), down(loss), step is lowest)
        for step, number, loss in zip(measured, numbers, losses, strict=True)
    ]
    return LossCurve(
        points,
        " ".join(f"{point.x},{point.y}" for point in points),
        [Tick(across(value), f"{value:,.0f}") for value in columns if first <= value <= end],
        [Tick(down(value), f"{value:.4g}") for value in rows],
        lowest,
    )


def nice_ticks(low: float, high: float) -> list[float]:
    """Return at most ``MAX_TICKS`` round numbers that cover the range from ``low`` to ``high``."""
    if high <= low:
        return [low]
    rough = (high - low) / (MAX_TICKS - 2)
    power = 10.0 ** math.floor(math.log10(rough))
    width = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.floor(low / width + 1e-9)
    count = math.ceil(high / width - 1e-9) - first
    return [round((first + number) * width, 12) for number in range(count + 1)]
