"""Spec of positions that are sines and cosines, without parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SinusoidsSpec:
    """Added to the embedding at position p: sin of all angles, then cos; angle k is (p + first) · 10000^(-k / steps).

    Source: https://arxiv.org/abs/1706.03762, section 3.5, and tensor2tensor's order of the values.
    """

    steps: int
    first: int = 0
