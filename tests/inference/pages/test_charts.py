"""Lines with gaps, axes and marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.pages.charts import Series, draw, sparkline

MOMENTS = [f"{number} min ago" for number in range(5, 0, -1)]


def drawing(*values: float | None):
    return draw("Rate", "", [Series("rate", values)], moments=MOMENTS, ends="5|3|now", text=lambda value: f"{value:g}")


def test_a_gap_ends_a_line_and_a_single_value_is_a_dot() -> None:
    chart = drawing(1.0, 2.0, None, 4.0, None)
    (line,) = chart.lines
    assert line.parts == ["58.0,110.5 131.0,77.0"]
    assert line.dots == [(277.0, 10.0)]
    assert [mark.words for mark in chart.marks] == [
        "5 min ago, rate 1", "4 min ago, rate 2", "3 min ago, rate –", "2 min ago, rate 4", "1 min ago, rate –",
    ]  # fmt: skip
    assert [(tick.place, tick.label) for tick in chart.columns] == [(58.0, "5"), (204.0, "3"), (350.0, "now")]
    assert (chart.rows[0].place, chart.rows[0].label) == (144.0, "0")


def test_without_values_there_is_no_drawing_and_zeros_are_a_line() -> None:
    assert drawing(*[None] * 5) is None
    assert drawing(*[0.0] * 5).lines[0].parts == [" ".join(f"{x},144.0" for x in (58.0, 131.0, 204.0, 277.0, 350.0))]


@given(st.lists(st.none() | st.floats(0, 1e9), min_size=5, max_size=5))
def test_every_value_has_its_place_inside(values: list[float | None]) -> None:
    chart = drawing(*values)
    if chart is None:
        assert values == [None] * 5
        return
    (line,) = chart.lines
    points = [tuple(map(float, point.split(","))) for part in line.parts for point in part.split()] + list(line.dots)
    assert len(points) == sum(value is not None for value in values)
    assert all(chart.left <= x <= chart.right and chart.top <= y <= chart.bottom for x, y in points)


@pytest.mark.parametrize(
    ("values", "points"), [([], ""), ([0, 0], ""), ([0, 5, 10], "0,9.5 1,5.0 2,0.5"), ([0.25, 0.0], "0,0.5 1,9.5")]
)
def test_sparklines(values: list[float], points: str) -> None:
    assert sparkline(values) == points
