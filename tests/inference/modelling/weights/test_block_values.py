"""The values of GGUF blocks, bit by bit those of the ``gguf`` package, an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from inference.errors import UnsupportedFormat
from inference.modelling.gguf.block_types import BY_NAME
from inference.modelling.weights.block_values import PLAIN_DTYPES, dequantise, readable_types


@pytest.mark.parametrize("name", [name for name in readable_types() if name not in (*PLAIN_DTYPES, "Q1_0")])
def test_random_blocks_are_the_packages(name):
    kind = BY_NAME[name]
    raw = np.random.default_rng(3).integers(0, 256, (777, kind.num_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # some of the scales are infinite
        expected = quants.dequantize(raw, GGMLQuantizationType[name])
    found = dequantise(torch.from_numpy(raw), kind).numpy()
    assert found.dtype == np.float32
    both_nan = np.isnan(found) & np.isnan(expected)
    assert ((found.view(np.uint32) == expected.view(np.uint32)) | both_nan).all()


@pytest.mark.parametrize("name", PLAIN_DTYPES)
def test_plain_numbers_are_taken_as_they_are(name):
    values = torch.tensor([[0.5], [-3.0], [1e-3]]).to(PLAIN_DTYPES[name])
    assert torch.equal(dequantise(values.view(torch.uint8), BY_NAME[name]), values.float())


def test_the_first_block_of_a_known_matrix():
    """By hand: d = 0.5, codes 0 to 15 in the low halves, 15 to 0 in the high ones."""
    half = np.float16(0.5).tobytes()
    codes = bytes(low | (15 - low) << 4 for low in range(16))
    block = torch.frombuffer(bytearray(half + codes), dtype=torch.uint8).view(1, -1)
    expected = [0.5 * (code - 8) for code in [*range(16), *reversed(range(16))]]
    assert dequantise(block, BY_NAME["Q4_0"]).tolist() == [expected]


def test_bits_are_signs():
    """By hand, as the package has no formula: d = 0.25, every third bit set."""
    positive = [number % 3 == 0 for number in range(128)]
    codes = bytes(sum(positive[8 * byte + bit] << bit for bit in range(8)) for byte in range(16))
    block = torch.frombuffer(bytearray(np.float16(0.25).tobytes() + codes), dtype=torch.uint8).view(1, -1)
    assert dequantise(block, BY_NAME["Q1_0"]).tolist() == [[0.25 if bit else -0.25 for bit in positive]]


def test_a_type_without_a_formula_is_refused():
    with pytest.raises(UnsupportedFormat, match="I8 can't be read"):
        dequantise(torch.zeros(1, 1, dtype=torch.uint8), BY_NAME["I8"])
