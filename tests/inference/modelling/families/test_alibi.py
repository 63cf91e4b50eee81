"""Slopes of ALiBi."""

from __future__ import annotations

from inference.modelling.families.alibi import alibi_slopes


def test_slopes_are_powers_of_2() -> None:
    assert alibi_slopes(1) == (2.0**-8,)
    assert alibi_slopes(4) == (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8)
    assert alibi_slopes(3) == (2.0**-4, 2.0**-8, 2.0**-2)  # every second one of four first
