"""Lay out the held-out loss of a run's checkpoints as a drawing for its page: loss over training steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from models_registry.curves import Drawing, Tick, across, down
from models_registry.models import RunStep

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve(Drawing):
    """The drawing.

    Attributes:
        points: In the order of training.
        lowest: The checkpoint with the lowest loss.
    """

    points: Sequence[LossPoint]
    lowest: RunStep


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

    lowest = measured[losses.index(min(losses))]
    points = [
        LossPoint(step, across(number, first, end), down(loss, low, high), step is lowest)
        for step, number, loss in zip(measured, numbers, losses, strict=True)
    ]
    return LossCurve(
        points=points,
        line=" ".join(f"{point.x},{point.y}" for point in points),
        columns=[Tick(across(value, first, end), f"{value:,.0f}") for value in columns if first <= value <= end],
        rows=[Tick(down(value, low, high), f"{value:.4g}") for value in rows],
        lowest=lowest,
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
