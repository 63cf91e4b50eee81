"""Operations on rows: selection without copies, sorted values, draws at given numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from inference.engine.sampling import row_ops
from inference.engine.sampling.row_ops import column, descending, draw_by_numbers, mask_below, select_rows
from inference.engine.sampling.sampling_state import SamplingState
from inference.values.sampling_params import SamplingParams

ROWS = [SamplingState(SamplingParams(seed=seed), (), (), ()) for seed in range(3)]


def test_all_rows_are_selected_without_a_copy_and_some_with_one():
    values = torch.arange(6.0).reshape(3, 2)
    part, rows = select_rows(values, ROWS, [0, 1, 2])
    assert part is values and rows is ROWS
    part, rows = select_rows(values, ROWS, [2, 0])
    assert rows == [ROWS[2], ROWS[0]]
    part += 10
    assert values[0, 0] == 0.0


def test_values_below_a_row_s_limit_are_masked():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    mask_below(values, column([2.0, 0.0], np.float32, values.device))
    assert values.tolist() == [[-math.inf, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("limit", [0, 64])
@pytest.mark.parametrize("count", [1, 5, 100])
def test_the_greatest_values_come_first(monkeypatch, limit, count):
    monkeypatch.setattr(row_ops, "MAX_TOPK_COLUMNS", limit)  # both ways on the CPU
    values = torch.randn(4, 100)
    assert torch.equal(descending(values, count), values.sort(dim=-1, descending=True).values[:, :count])


def test_a_number_falls_on_the_token_at_its_share():
    scaled = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(5, 3).clone()
    numbers = np.array([0.0, 0.1999, 0.2001, 0.6999, 1 - 2**-53])
    assert draw_by_numbers(scaled, numbers).tolist() == [0, 0, 1, 1, 2]
