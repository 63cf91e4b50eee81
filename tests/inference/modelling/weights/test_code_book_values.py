"""IQ blocks by hand; random ones are compared with the ``gguf`` package in test_block_values.py."""

from __future__ import annotations

import numpy as np
import torch

from inference.modelling.weights.code_book_values import iq1_s, iq2_xxs, iq3_s
from inference.modelling.weights.code_books import code_book

ONE = np.float16(1.0).tobytes()


def block(content: bytes, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(content.ljust(size, b"\0")), dtype=torch.uint8).view(1, -1)


def test_a_scale_and_a_point():
    """Scale 2 of the first 32 values: (0.5 + 2) / 4; all signs positive."""
    values = iq2_xxs(block(ONE + bytes([7, 0, 0, 0]) + (2 << 28).to_bytes(4, "little"), 66))
    assert torch.equal(values[0, :8], 0.625 * code_book("IQ2_XXS")[7])
    assert torch.equal(values[0, 32:40], 0.125 * code_book("IQ2_XXS")[0])


def test_the_eighth_sign_makes_the_negative_ones_even():
    values = iq2_xxs(block(ONE + bytes(4) + (0b0000001).to_bytes(4, "little"), 66))
    assert (values[0, :8] < 0).tolist() == [True] + [False] * 6 + [True]


def test_signs_are_stored_for_each_value():
    values = iq3_s(block(ONE + bytes(64 + 8) + bytes([0b10000010]), 110))
    assert (values[0, :8] < 0).tolist() == [False, True] + [False] * 5 + [True]


def test_points_are_moved():
    """The highest bit of the first pair of bytes: down rather than up."""
    values = iq1_s(block(ONE + bytes(32) + (0x8000).to_bytes(2, "little"), 50))
    points = code_book("IQ1_S")[0]
    assert torch.equal(values[0, :8], points - 0.125)
    assert torch.equal(values[0, 32:40], points + 0.125)
