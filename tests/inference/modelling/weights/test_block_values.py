"""The values of GGUF blocks, bit by bit those of the ``gguf`` package, an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from inference.errors import UnsupportedFormat
from inference.modelling.gguf.block_types import BY_NAME
from inference.modelling.weights.block_values import PLAIN_DTYPES, dequantise, readable_types

PACKAGED = [name for name in readable_types() if name not in (*PLAIN_DTYPES, "Q1_0") and "ggjt" not in name]


@pytest.mark.parametrize("name", PACKAGED)
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


@pytest.mark.parametrize("name", [name for name in readable_types() if "ggjt" in name])
def test_older_layouts_are_those_of_their_time(name):
    """By the formulas of ggml before its pull requests 1405 and 1508, value by value."""
    kind, form = BY_NAME[name], name[:4]
    random = np.random.default_rng(4)
    factors = random.standard_normal((5, 2)).astype(np.float16 if form[1] == "5" else np.float32)
    count = 2 if form.endswith("1") else 1
    head = np.ascontiguousarray(factors[:, :count]).view(np.uint8).reshape(5, -1)
    rest = random.integers(0, 256, (5, kind.num_bytes - head.shape[1]), dtype=np.uint8)
    found = dequantise(torch.from_numpy(np.concatenate([head, rest], axis=1)), kind)
    high = 4 if form[1] == "5" else 0
    for block in range(5):
        bits, codes = int.from_bytes(rest[block, :high].tobytes(), "little"), rest[block, high:]
        for number in range(32):
            if form == "Q8_0":
                code = int(codes[number].astype(np.int8))
            elif "ggjt 1" in name:
                code = int(codes[number // 2]) >> 4 * (number % 2) & 15
            else:
                code = int(codes[number % 16]) >> 4 * (number // 16) & 15
            code += 16 * (bits >> number & 1)
            zero = {"Q4_0": 8, "Q5_0": 16}.get(form, 0)
            scale, offset = np.float32(factors[block, 0]), np.float32(factors[block, 1] if count == 2 else 0)
            assert found[block, number] == np.float32(code - zero) * scale + offset


def test_bits_are_signs():
    """By hand, as the package has no formula: d = 0.25, every third bit set."""
    positive = [number % 3 == 0 for number in range(128)]
    codes = bytes(sum(positive[8 * byte + bit] << bit for bit in range(8)) for byte in range(16))
    block = torch.frombuffer(bytearray(np.float16(0.25).tobytes() + codes), dtype=torch.uint8).view(1, -1)
    assert dequantise(block, BY_NAME["Q1_0"]).tolist() == [[0.25 if bit else -0.25 for bit in positive]]


def test_a_type_without_a_formula_is_refused():
    with pytest.raises(UnsupportedFormat, match="I8 can't be read"):
        dequantise(torch.zeros(1, 1, dtype=torch.uint8), BY_NAME["I8"])
