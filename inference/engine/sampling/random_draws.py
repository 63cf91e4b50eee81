"""Compute random numbers that depend on (seed, output position) only.

The generator is counter-based and has no state: a request gets the same draws in any batch, after preemption, and in
a second attempt on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return a uniform number in [0, 1) with 53 random bits for each pair of seed and position.

    The seed is scrambled, the position is added in steps of the golden ratio, and the sum is scrambled twice, so
    that neighbouring seeds (choices of one request) and positions are unrelated.

    Args:
        seeds: Any integers; their lower 64 bits are used.
        positions: Output positions, from 0.

    Source: SplitMix64 of Steele, Lea and Flood 2014, https://doi.org/10.1145/2714064.2660195.
    """
    state = _scramble(np.array([seed & _MASK for seed in seeds], dtype=np.uint64) + _GOLDEN)
    state = state + _GOLDEN * np.array(positions, dtype=np.uint64)
    bits = _scramble(_scramble(state) + _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function; the integer overflow is intended."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
