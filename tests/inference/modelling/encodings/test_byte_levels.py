"""Tables of four-bit codes in bytes: NF4's and FP4's as near as stated, and no others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.modelling.encodings.byte_levels import byte_levels
from tests.inference.modelling.encodings.formats import FP4, NF4


def loss(table: tuple[float, ...]) -> float:
    found = byte_levels(table)
    assert found is not None
    levels, step = found
    assert all(-127 <= level <= 127 for level in levels)
    errors = [value - level * step for value, level in zip(table, levels, strict=True)]
    return math.hypot(*errors) / math.hypot(*table)


def test_rounding_costs_what_is_stated() -> None:
    assert loss(NF4) == pytest.approx(0.0033, abs=5e-5)
    assert loss(FP4) == pytest.approx(0.0023, abs=5e-5)


@pytest.mark.parametrize("table", [NF4, FP4])
def test_no_other_factor_rounds_less(table: tuple[float, ...]) -> None:
    values = np.array(table)
    levels = np.round(values * np.arange(64, 127 + 1 / 16, 1 / 16)[:, None])
    steps = (levels @ values) / (levels * levels).sum(-1)
    losses = np.linalg.norm(values - levels * steps[:, None], axis=-1) / np.linalg.norm(values)
    assert loss(table) <= losses.min() + 1e-9


@pytest.mark.parametrize("table", [NF4, FP4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tables_stored_in_fewer_bits_are_known(table: tuple[float, ...], dtype: torch.dtype) -> None:
    assert byte_levels(tuple(torch.tensor(table).to(dtype).tolist())) == byte_levels(table)


@given(st.lists(st.floats(width=32), min_size=0, max_size=17))
def test_any_other_table_has_no_levels(table: list[float]) -> None:
    """Infinities and NaN among them; each other table would be a form of its own in the kernels."""
    assert byte_levels(tuple(table)) is None


@pytest.mark.parametrize("value", [0.1, math.nan, math.inf])
def test_one_other_value_makes_another_table(value: float) -> None:
    assert byte_levels((*NF4[:5], value, *NF4[6:])) is None
