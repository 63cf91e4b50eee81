"""Lay out values over time as drawings for pages: lines with gaps, axes, and a title for each moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from models_registry.curves import Box, Drawing, Tick, across, down
from models_registry.runs.loss_curve import nice_ticks

WIDTH, HEIGHT = 360, 170
_BOX = Box(left=58, right=350, top=10, bottom=144)
_MIN_TOP = 1e-9


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one line, one per moment; None: there is none then."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line as the parts between its gaps.

    Attributes:
        parts: Points of polylines.
        dots: Places of values with a gap on both sides.
    """

    name: str
    parts: Sequence[str]
    dots: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """The strip of one moment, which says its values to whom points at it."""

    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart(Drawing):
    """Lines over time.

    Attributes:
        title: What is drawn.
        words: The drawing for those who don't see it.
    """

    title: str
    words: str
    lines: Sequence[Line]
    marks: Sequence[Mark]


def draw(
    title: str, words: str, series: Sequence[Series], *, moments: Sequence[str], ends: str, text: Callable[[float], str]
) -> Chart | None:
    """Return the drawing of values from 0 on; None: there are no values.

    Args:
        series: Lines with as many values as there are ``moments``, two at least.
        moments: What each moment is called.
        ends: What the axis's beginning and its later ticks are called, with "|" between.
        text: Returns a value in words.
    """
    values = [value for item in series for value in item.values if value is not None]
    if not values:
        return None
    top, last = max(values), len(moments) - 1
    ticks = nice_ticks(0.0, top) if top > _MIN_TOP else [0.0, 1.0]
    high = ticks[-1]
    names = ends.split("|")
    step = (_BOX.right - _BOX.left) / last
    return Chart(
        title=title,
        words=words,
        width=WIDTH,
        height=HEIGHT,
        left=_BOX.left,
        right=_BOX.right,
        top=_BOX.top,
        bottom=_BOX.bottom,
        line="",
        columns=[Tick(across(number, 0, len(names) - 1, _BOX), name) for number, name in enumerate(names)],
        rows=[Tick(down(tick, 0, high, _BOX), text(tick)) for tick in ticks],
        lines=[_line(item, last, high) for item in series],
        marks=[
            Mark(
                round(across(number, 0, last, _BOX) - step / 2, 1),
                round(step, 1),
                ", ".join([moment, *(_value_words(item, number, text) for item in series)]),
            )
            for number, moment in enumerate(moments)
        ],
    )


def sparkline(values: Sequence[float]) -> str:
    """Return the points of a polyline in a box of one less than the values' number by 10; empty without any value."""
    top = max(values, default=0)
    return " ".join(f"{at},{9.5 - 9 * value / top:.1f}" for at, value in enumerate(values)) if top > 0 else ""


def _value_words(item: Series, number: int, text: Callable[[float], str]) -> str:
    value = item.values[number]
    return f"{item.name} {'–' if value is None else text(value)}"


def _line(item: Series, last: int, high: float) -> Line:
    parts: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(item.values):
        if value is None:
            parts.append([])
        else:
            parts[-1].append((across(number, 0, last, _BOX), down(value, 0, high, _BOX)))
    return Line(
        item.name,
        [" ".join(f"{x},{y}" for x, y in part) for part in parts if len(part) > 1],
        [part[0] for part in parts if len(part) == 1],
    )
