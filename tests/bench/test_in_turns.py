"""What ``bench.in_turns`` compares, and how it says it."""

from __future__ import annotations

import pytest

from bench.figures import interval_of
from bench.in_turns import implementation


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
