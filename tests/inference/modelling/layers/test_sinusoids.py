"""Sinusoids against their formula."""

from __future__ import annotations

import math

import torch

from inference.modelling.layers.sinusoids import Sinusoids
from inference.modelling.specs.positions import SinusoidsSpec


def test_sines_come_before_cosines() -> None:
    found = Sinusoids(SinusoidsSpec(steps=3, first=2), 9)(torch.tensor([0, 5]))
    assert found.shape == (2, 9)
    for row, position in enumerate((2, 7)):
        for pair in range(4):
            angle = position * 10000 ** (-pair / 3)
            assert math.isclose(found[row, pair], math.sin(angle), abs_tol=1e-5)
            assert math.isclose(found[row, 4 + pair], math.cos(angle), abs_tol=1e-5)
    assert found[:, 8].tolist() == [0.0, 0.0]
