"""What the last requests and loads say of the next ones."""

from __future__ import annotations

from typing import Any

import pytest

from inference.worker.service_times import ServiceTimes


def usage(tokens: int, *, prefill_s: float = 1.0, decode_s: float = 3.0) -> Any:
    before_start_s = 0.75
    return {
        "completion_tokens": tokens, "queue_s": 0.5, "slot_s": 0.25, "ttft_s": before_start_s + prefill_s,
        "duration_s": before_start_s + prefill_s + decode_s,
    }  # fmt: skip


def test_a_running_request_ends_after_the_tokens_that_are_left() -> None:
    times = ServiceTimes()
    assert times.remaining_s(max_tokens=40, num_tokens=0, running_s=0) is None
    assert times.remaining_s(max_tokens=40, num_tokens=11, running_s=5.0) == pytest.approx(29 * 0.5)
    times.record(usage(31), 31, 1)
    assert times.token_s == pytest.approx(0.1)
    assert times.remaining_s(max_tokens=40, num_tokens=0, running_s=0) == pytest.approx(1.0 + 40 * 0.1)


def test_requests_that_end_early_shorten_the_expectation() -> None:
    times = ServiceTimes()
    for tokens in (10, 30):
        times.record(usage(tokens), 40, 1)
    assert times.expected_tokens(80) == 40
    assert times.expected_tokens(None) == 20
    # Longer than expected: one more token.
    assert times.remaining_s(max_tokens=40, num_tokens=39, running_s=38.0) == 1.0


def test_the_mean_request_is_what_the_running_ones_expect_until_one_has_ended() -> None:
    times = ServiceTimes()
    assert (times.request_s([]), times.request_s([2.0, 4.0])) == (0.0, 3.0)
    times.record(usage(8), None, 2)
    assert times.request_s([100.0]) == 4.0


def test_a_load_is_expected_to_take_as_long_as_the_last_one() -> None:
    times = ServiceTimes()
    assert times.remaining_load_s(elapsed_s=2.0, progress=0.01) is None
    assert times.remaining_load_s(elapsed_s=2.0, progress=0.25) == 6.0
    times.load_s = 10.0
    assert times.remaining_load_s(elapsed_s=2.0, progress=0.25) == 8.0
    assert times.remaining_load_s(elapsed_s=12.0, progress=0.75) == 4.0
