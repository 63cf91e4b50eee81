"""The compiled limits do what they are timed for."""

from __future__ import annotations

import pytest
import torch

from bench.machine import WINDOW_BYTES, compiled_reader, multiplication_rate, read_by_all


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


def test_other_instructions_cost_no_less_than_nothing() -> None:
    """And a core multiplies more than once and at most a thousand times in a nanosecond."""
    if compiled_reader() is None:
        pytest.skip("no compiler")
    alone, beside = multiplication_rate(), multiplication_rate(beside=True)
    threads = torch.get_num_threads()
    assert 1e9 < beside / threads < 1.5 * alone / threads < 1e12
