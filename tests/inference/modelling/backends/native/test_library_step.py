"""Greatest logits, against PyTorch."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("width", [1, 15, 16, 255, 256, 257, 5000])
def test_row_maxima(width: int) -> None:
    rows = torch.randn(7, width, generator=torch.Generator().manual_seed(width)).mul_(4).round_()  # many equals
    rows[2].fill_(-torch.inf)
    rows[3, -1] = torch.inf
    places, values = torch.ops.blazr.row_maxima(rows)
    assert torch.equal(values, rows.amax(-1))
    assert places.tolist() == [int((row == row.max()).nonzero()[0, 0]) for row in rows]


@pytest.mark.parametrize("at", [0, 17, 299])
def test_a_nan_anywhere_is_the_maximum(at: int) -> None:
    rows = torch.randn(2, 300)
    rows[0, at] = torch.nan
    places, values = torch.ops.blazr.row_maxima(rows)
    assert values.isnan().tolist() == [True, False]
    assert places[0] == 0
    assert places[1] == rows[1].argmax()
