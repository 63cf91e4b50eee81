"""Random numbers that depend on (seed, output position) and nothing else.

A counter-based generator: no state to keep per request, the same draw in any batch, after preemption and in
a second attempt on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.float64]:
    """One uniform number in [0, 1) for each pair, 53 random bits.

    The seed is scrambled, the position added in steps of the golden ratio, and the sum scrambled twice, so
    that neighbouring seeds (choices of one request) and positions are unrelated.

    Args:
        seeds: Any integers; their lower 64 bits count.
        positions: From 0.

    Source: SplitMix64 of Steele, Lea and Flood 2014, https://doi.org/10.1145/2714064.2660195.
    """
    state = _scramble(np.array([seed & _MASK for seed in seeds], dtype=np.uint64) + _GOLDEN)
    state = state + _GOLDEN * np.array(positions, dtype=np.uint64)
    bits = _scramble(_scramble(state) + _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function; arrays wrap around silently, as meant."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
