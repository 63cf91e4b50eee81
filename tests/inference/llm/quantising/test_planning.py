"""Plans keep their bytes, and more bytes never predict a higher divergence."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.llm.quantising.planning import NUM_CELLS, Choice, Planner

SIZES = st.lists(st.integers(1, 10**9), min_size=1, max_size=5, unique=True)


@st.composite
def choices(draw: st.DrawFn) -> dict[str, list[Choice]]:
    found = {}
    for number in range(draw(st.integers(1, 6))):
        sizes = draw(SIZES)
        found[str(number)] = [
            Choice(str(row), size, draw(st.floats(0, 10, allow_subnormal=False))) for row, size in enumerate(sizes)
        ]
    return found


@given(choices(), st.integers(0, 10**6), st.lists(st.floats(0, 1.2), min_size=2, max_size=6))
def test_plans_keep_their_bytes_and_get_better_with_more(
    found: dict[str, list[Choice]], fixed: int, shares: list[float]
) -> None:
    planner = Planner(found, fixed)
    before = float("inf")
    for share in sorted(shares):
        limit = planner.min_bytes + int(share * (planner.max_bytes - planner.min_bytes))
        plan = planner.within(limit)
        assert plan is not None
        chosen = [next(one for one in found[name] if one.form == form) for name, form in plan.forms.items()]
        assert plan.forms.keys() == found.keys()
        assert plan.size_bytes == fixed + sum(one.size_bytes for one in chosen) <= limit
        assert plan.predicted == pytest.approx(sum(one.divergence for one in chosen))
        assert plan.predicted <= before + 1e-9
        before = plan.predicted
    assert planner.within(planner.min_bytes - 1) is None
    uniform = planner.uniform("0")
    assert set(uniform.forms.values()) == {"0"}
    assert uniform.size_bytes == fixed + sum(each[0].size_bytes for each in found.values())
    assert uniform.predicted == pytest.approx(sum(each[0].divergence for each in found.values()))
    assert all(planner.within(limit).size_bytes <= limit for limit in planner.limits()[:20])  # type: ignore[union-attr]


@given(st.data())
def test_small_plans_are_the_best_of_all(data: st.DataObject) -> None:
    """With sizes below the grid's cells nothing is rounded, so the plan is the knapsack's solution."""
    found = {
        str(part): [Choice(str(row), size, data.draw(st.floats(0, 9))) for row, size in enumerate(sizes)]
        for part, sizes in enumerate(
            data.draw(st.lists(st.lists(st.integers(1, 500), min_size=1, max_size=3), min_size=1, max_size=4))
        )
    }
    planner = Planner(found)
    assert planner.max_bytes - planner.min_bytes < NUM_CELLS
    limit = data.draw(st.integers(planner.min_bytes, planner.max_bytes))
    best = min(
        sum(one.divergence for one in each)
        for each in itertools.product(*found.values())
        if sum(one.size_bytes for one in each) <= limit
    )
    plan = planner.within(limit)
    assert plan is not None
    assert plan.predicted == pytest.approx(best)


def test_the_sensitive_part_gets_the_bytes() -> None:
    found = {
        "a": [Choice("int4", 50, 1.0), Choice("int8", 100, 0.0)],
        "b": [Choice("int4", 50, 0.1), Choice("int8", 100, 0.0)],
    }
    plan = Planner(found, 7).within(7 + 150)
    assert plan is not None
    assert (plan.forms, plan.size_bytes) == ({"a": "int8", "b": "int4"}, 157)
