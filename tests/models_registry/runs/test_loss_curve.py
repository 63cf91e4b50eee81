"""The drawing of a run's losses: points in their places, round numbers at the axes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_registry.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from models_registry.models import RunStep
from models_registry.runs.loss_curve import MAX_TICKS, draw_losses, nice_ticks


def steps(*losses: float | None) -> list[RunStep]:
    return [RunStep(number=100 * number, loss=loss) for number, loss in enumerate(losses, start=1)]


def test_points_are_placed_by_step_and_loss() -> None:
    rows = [*steps(4.0, None, 2.0, 3.0), RunStep(number=None, loss=2.5)]
    curve = draw_losses(rows)
    assert [point.step.number for point in curve.points] == [100, 300, 400, None]
    assert [point.x for point in curve.points] == [LEFT, 426.7, WIDTH - RIGHT, WIDTH - RIGHT]
    assert [point.y for point in curve.points] == [TOP, HEIGHT - BOTTOM, 120.0, 172.0]
    assert [point.is_lowest for point in curve.points] == [False, True, False, False]
    assert curve.lowest is rows[2]
    assert [tick.label for tick in curve.columns] == ["100", "200", "300", "400"]
    assert [tick.label for tick in curve.rows] == ["2", "2.5", "3", "3.5", "4"]
    assert curve.line.split()[0] == f"{float(LEFT)},{float(TOP)}"


@pytest.mark.parametrize("losses", [(), (1.0,), (None, None, 2.0), (float("nan"), 2.0)])
def test_one_point_is_no_curve(losses: tuple) -> None:
    assert draw_losses(steps(*losses)) is None


def test_equal_losses_and_equal_steps_are_drawn() -> None:
    assert draw_losses(steps(2.0, 2.0)).points[0].y == HEIGHT - BOTTOM
    ends = draw_losses([RunStep(number=None, loss=1.0), RunStep(number=None, loss=2.0)])
    assert [point.x for point in ends.points] == [LEFT, LEFT]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_cover_the_range(low: float, width: float) -> None:
    ticks = nice_ticks(low, low + width)
    if low + width <= low:
        return
    assert 2 <= len(ticks) <= MAX_TICKS + 1
    slack = 1e-6 * (ticks[-1] - ticks[0]) + 1e-9 * abs(low)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + width - slack
