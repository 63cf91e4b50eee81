"""What ``bench.in_turns`` compares, and how it says it."""

from __future__ import annotations

import pytest

from bench.figures import interval_of
from bench.in_turns import Round, command_of, describe, implementation


@pytest.mark.parametrize(
    ("peer", "bits", "name"),
    [
        ("blazr", 16, "blazr bf16"),
        ("blazr", 4, "blazr int4"),
        ("llama-cpp", 16, "llama.cpp bf16"),
        ("openvino", 8, "openvino int8"),
    ],
)
def test_both_sides_have_the_same_bits(peer: str, bits: int, name: str) -> None:
    assert implementation(peer, bits).name == name


def test_a_spread_is_the_median_with_both_ends() -> None:
    assert interval_of([3.0, 1.0, 2.25]) == "2.25 (1.00 to 3.00)"
    assert interval_of([10.04], 1) == "10.0 (10.0 to 10.0)"


def test_a_task_says_batch_and_length() -> None:
    assert command_of("decode8", 24) == ("decode", {"batch": 8, "prompt": 128, "new": 24})
    assert command_of("prefill512", 24) == ("prefill", {"tokens": 512})


def test_a_line_has_each_peer_s_ratio_and_the_share_of_the_bound() -> None:
    rounds = [Round({"blazr": 30.0, "llama-cpp": 20.0}, 4e9), Round({"blazr": 20.0, "llama-cpp": 20.0}, 2e9)]
    line = describe(rounds, 1e8)
    assert "25.0 (20.0 to 30.0) tokens/s" in line
    assert "llama-cpp 20.0 (20.0 to 20.0), ratio 1.25 (1.00 to 1.50)" in line
    assert "blazr at 0.88 (0.75 to 1.00) of the bound" in line
    assert "bound" not in describe(rounds, None)
