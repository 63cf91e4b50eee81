"""The reader of memory reads everything that it is timed for."""

from __future__ import annotations

import pytest
import torch

from bench.machine import WINDOW_BYTES, compiled_reader, read_by_all


@pytest.mark.parametrize("pages", [False, True])
def test_every_word_is_read(pages: bool) -> None:
    reader = compiled_reader()
    if reader is None:
        pytest.skip("no compiler")
    words = torch.zeros(4 * torch.get_num_threads() * WINDOW_BYTES // 8, dtype=torch.int64)
    expected = 0
    for bit in range(63):
        at = (bit * 10_007) % words.numel()
        words[at] ^= 1 << bit
        expected ^= 1 << bit
    assert read_by_all(reader, words, pages) == expected
    words[0] ^= 1
    words[-1] ^= 6
    assert read_by_all(reader, words, pages) == expected ^ 7
