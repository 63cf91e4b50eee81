"""Tables of four-bit codes in bytes: as near as stated, and the same for every scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.modelling.encodings.byte_levels import byte_levels
from tests.inference.modelling.encodings.formats import NF4, e2m1

FP4 = tuple((e2m1(np.arange(16)) / 6).tolist())
"""As the tests' writer has it."""
BNB_FP4 = (0.0, 1 / 192, 8 / 12, 1.0, 4 / 12, 0.5, 2 / 12, 0.25)
"""As bitsandbytes has it, without the signs: its least value is far below the next one."""


def loss(table: tuple[float, ...]) -> float:
    found = byte_levels(table)
    assert found is not None
    levels, step = found
    assert all(-127 <= level <= 127 for level in levels)
    errors = [value - level * step for value, level in zip(table, levels, strict=True)]
    return math.hypot(*errors) / math.hypot(*table)


def test_rounding_costs_what_is_stated() -> None:
    assert loss(NF4) == pytest.approx(0.0033, abs=5e-5)
    assert loss((*BNB_FP4, *(-value for value in BNB_FP4))) == pytest.approx(0.0023, abs=5e-5)
    assert loss(FP4) < 1e-7, "multiples of a twelfth are exact"


@given(st.lists(st.floats(-1, 1, width=32), min_size=16, max_size=16), st.floats(0.01, 100))
def test_any_table_is_near_and_its_scale_changes_nothing(table: list[float], scale: float) -> None:
    if max(map(abs, table)) < 1e-3:
        return
    assert loss(tuple(table)) < 0.01
    assert loss(tuple(value * scale for value in table)) < 0.01


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_what_is_no_table_has_no_levels(value: float) -> None:
    assert byte_levels((value,) * 16) is None
    assert byte_levels((1.0, *(0.0,) * 14, value)) is None or value == 0.0
