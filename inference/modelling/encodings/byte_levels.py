"""Round the values that bitsandbytes' four-bit codes stand for to bytes, which products look up.

The values of NF4 aren't multiples of any number. Rounding changes NF4 by 0.33 % and FP4 of bitsandbytes by 0.23 % (root
mean square, against that of the values).
"""

from __future__ import annotations

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Source: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314, appendix E."""
_FP4_MAGNITUDES = (0.0, 1 / 192, 8 / 12, 1.0, 4 / 12, 0.5, 2 / 12, 0.25)
FP4 = (*_FP4_MAGNITUDES, *(-value for value in _FP4_MAGNITUDES))
"""As bitsandbytes' kernels have it."""
_TOLERANCE = 2e-3
"""bfloat16, in which some files store the tables, rounds a value near 1 by as much."""


def byte_levels(table: tuple[float, ...]) -> tuple[tuple[int, ...], float] | None:
    """Return levels from -127 to 127 and a step, so that level · step approximates the values of ``table``.

    None: it is neither NF4's table nor FP4's. Files may hold any table: one whose values bytes can't tell apart, or
    another one for each weight, each of which would be a form of its own in the kernels.
    """
    for known, rounded in _KNOWN:
        if len(table) == 16 and all(abs(a - b) <= _TOLERANCE for a, b in zip(table, known, strict=True)):
            return rounded
    return None


def _rounded(table: tuple[float, ...], factor: float) -> tuple[tuple[int, ...], float]:
    """Levels round(value · factor), and the step with the least squared error."""
    levels = tuple(round(value * factor) for value in table)
    squares = sum(level * level for level in levels)
    return levels, sum(level * value for level, value in zip(levels, table, strict=True)) / squares


_KNOWN = ((NF4, _rounded(NF4, 111.75)), (FP4, _rounded(FP4, 119.5)))
"""The factors round the tables least, of all from 64 to 127 in sixteenths: a test tries the others."""
