"""Inputs of decodes and greatest logits, against plain Python and PyTorch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st


@given(data=st.data(), block_size=st.integers(1, 9), count=st.integers(1, 5))
def test_decode_inputs(data, block_size: int, count: int) -> None:
    positions = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    token_ids = data.draw(st.lists(st.integers(0, 1 << 40), min_size=count, max_size=count))
    request_indices = data.draw(st.permutations(range(count + 2)))[:count]
    longest = max(positions) + 1
    width = -(-longest // block_size) + data.draw(st.integers(0, 2))
    blocks = data.draw(st.lists(st.integers(1, 1000), min_size=(count + 2) * width, max_size=(count + 2) * width))
    tables = torch.tensor(blocks, dtype=torch.int32).view(count + 2, width)
    found = torch.ops.blazr.decode_inputs(tables, torch.tensor(request_indices), token_ids, positions, block_size)
    ids, places, slot_mapping, slots, table = found
    assert ids.tolist() == token_ids
    assert places.tolist() == positions
    assert table.tolist() == [[row, 1, position + 1, row * longest] for row, position in enumerate(positions)]
    for row, (request_index, position) in enumerate(zip(request_indices, positions, strict=True)):
        expected = [
            int(tables[request_index, at // block_size]) * block_size + at % block_size for at in range(position + 1)
        ]
        assert slots.view(count, longest)[row].tolist() == expected + [0] * (longest - len(expected))
        assert slot_mapping[row] == expected[-1]


def test_decode_inputs_of_a_model_without_pages() -> None:
    found = torch.ops.blazr.decode_inputs(torch.zeros(4, 0, dtype=torch.int32), torch.tensor([2, 0]), [5, 6], [7, 8], 0)
    assert [part.tolist() for part in found[:4]] == [[5, 6], [7, 8], [0, 0], []]


@pytest.mark.parametrize(
    ("request_indices", "token_ids", "positions", "words"),
    [
        ([0], [1], [8], "tables too short"),
        ([0, 1], [1], [8, 8], "a token and a position"),
        ([2], [1], [3], "no such request index"),
        ([0, 1], [1, 1], [3, -1], "no such request index"),
    ],
)
def test_decode_inputs_that_do_not_fit_are_refused(
    request_indices: list[int], token_ids: list[int], positions: list[int], words: str
) -> None:
    tables = torch.ones(2, 2, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=words):
        torch.ops.blazr.decode_inputs(tables, torch.tensor(request_indices), token_ids, positions, 4)


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
