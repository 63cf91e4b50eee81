"""Slopes of ALiBi, by which scores fall with the distance. Source: https://arxiv.org/abs/2108.12409."""

from __future__ import annotations

import math


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """2^(-8 i / n) for i from 1 to n; of a larger power of 2, every second one first, where n is none."""
    count = 1 << math.ceil(math.log2(num_heads))
    slopes = [2.0 ** (-8 * number / count) for number in range(1, count + 1)]
    if count != num_heads:
        slopes = [*slopes[1::2], *slopes[::2]]
    return tuple(slopes[:num_heads])
