"""Read the measured curve of a checkpoint that ``blazr quantise`` wrote, and lay it out as a drawing for its page.

The file comes with the checkpoint, perhaps from a stranger: what isn't a plain list of numbers is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import CorruptCheckpoint
from models_registry.detection.json_file import read_object

PLAN_FILE = "quantisation.json"
MAX_BYTES = 8 << 20
MAX_POINTS = 64
WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 72, 36, 16, 56
_MAX_FORM_CHARS = 16
_NUM_TICKS = 5
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Point:
    """One measured plan.

    Attributes:
        size_bytes: Of the weights.
        mean_kl: Mean KL divergence from the stored weights, in nats.
        form: Of all matrices, where they have the same one; empty: mixed forms.
        is_chosen: Whether the checkpoint is this one.
        x, y: Its place in the drawing.
    """

    size_bytes: int
    mean_kl: float
    form: str
    is_chosen: bool
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled line of an axis."""

    place: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A curve in its axes.

    Attributes:
        line: For a polyline.
        columns, rows: Lines of the axes.
        width, height: Of the drawing.
        left, right, top, bottom: Edges of the area of the curve.
    """

    line: str
    columns: Sequence[Tick]
    rows: Sequence[Tick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(Drawing):
    """Divergence on a logarithmic axis over bytes; the line is that of the mixed plans.

    Attributes:
        points: The smallest first.
        text: What was read, and how much of it.
    """

    points: Sequence[Point]
    text: str


@dataclass(frozen=True, slots=True)
class Box:
    """The area of a curve in its drawing: its edges."""

    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


_BOX = Box()


def across(value: float, low: float, high: float, box: Box = _BOX) -> float:
    """Return the place of a value on the axis of columns, which goes from ``low`` to ``high``."""
    return round(box.left + (value - low) / (high - low) * (box.right - box.left), 1)


def down(value: float, low: float, high: float, box: Box = _BOX) -> float:
    """Return the place of a value on the axis of rows, which goes from ``low``, below, to ``high``."""
    return round(box.top + (high - value) / (high - low) * (box.bottom - box.top), 1)


def read_curve(directory: Path) -> Curve | None:
    """The curve of a checkpoint's directory; None: there is none, or nothing that can be drawn."""
    try:
        content = read_object(directory / PLAN_FILE, MAX_BYTES)
    except CorruptCheckpoint:
        return None
    measured = content.get("measured")
    figures: Mapping[str, Any] = measured if isinstance(measured, Mapping) else {}
    points = _points(content.get("curve"), figures.get("mean_kl"))
    if len(points) < 2:
        return None
    tokens = figures.get("num_tokens")
    text = str(figures.get("text", "an unknown text"))[:60]
    return _drawn(points, f"{tokens} predictions of {text}" if type(tokens) is int else text)


def _points(values: Any, chosen: Any) -> list[Point]:
    """The points that make sense, the smallest first."""
    points = []
    for value in values[:MAX_POINTS] if isinstance(values, list) else ():
        if not isinstance(value, Mapping):
            continue
        size, divergence, form = value.get("size_bytes"), value.get("mean_kl"), value.get("form", "")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size < 1 << 50:
            continue
        if not isinstance(divergence, float) or not math.isfinite(divergence) or divergence <= 0:
            continue
        if isinstance(form, str):
            points.append(Point(size, divergence, form[:_MAX_FORM_CHARS], divergence == chosen))
    return sorted(points, key=lambda point: point.size_bytes)


def _drawn(points: Sequence[Point], text: str) -> Curve:
    sizes = [point.size_bytes for point in points]
    powers = [math.log10(point.mean_kl) for point in points]
    low, high = min(sizes), max(max(sizes), min(sizes) + 1)
    lowest, highest = math.floor(min(powers)), math.ceil(max(powers))
    highest = max(highest, lowest + 1)

    placed = [
        Point(
            one.size_bytes,
            one.mean_kl,
            one.form,
            one.is_chosen,
            across(one.size_bytes, low, high),
            down(power, lowest, highest),
        )
        for one, power in zip(points, powers, strict=True)
    ]
    steps = [low + (high - low) * number / (_NUM_TICKS - 1) for number in range(_NUM_TICKS)]
    return Curve(
        points=placed,
        line=" ".join(f"{one.x},{one.y}" for one in placed if not one.form),
        columns=[Tick(across(size, low, high), f"{size / _MIB:.3g}") for size in steps],
        rows=[Tick(down(power, lowest, highest), f"1e{power}") for power in range(lowest, highest + 1)],
        text=text,
    )
