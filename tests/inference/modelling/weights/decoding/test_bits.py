"""Codes from words and bytes, against strings of bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.modelling.weights.decoding.bits import unpack_awq, unpack_nibbles, unpack_planes, unpack_words
from inference.modelling.weights.decoding.decode import decode
from tests.inference.modelling.encodings.formats import bit_words, loose_words
from tests.inference.modelling.encodings.tables import decoded_table


@settings(max_examples=100, deadline=None)
@given(bits=st.integers(1, 8), rows=st.integers(1, 3), count=st.integers(1, 100), loose=st.booleans())
def test_words_of_any_width(bits: int, rows: int, count: int, loose: bool) -> None:
    codes = np.random.default_rng(count).integers(0, 1 << bits, (rows, count))
    words = (loose_words if loose else bit_words)(codes, bits)
    assert torch.equal(unpack_words(words, bits, count, loose=loose), torch.from_numpy(codes).to(torch.uint8))


def test_orders_of_nibbles() -> None:
    assert unpack_nibbles(torch.tensor([0x21, 0x6F], dtype=torch.uint8)).tolist() == [1, 2, 15, 6]
    assert unpack_nibbles(torch.tensor([0x21, 0x6F], dtype=torch.uint8), high_first=True).tolist() == [2, 1, 6, 15]
    assert unpack_awq(torch.tensor([0x75316420], dtype=torch.int32)).tolist() == list(range(8))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_planes_hold_parts_of_the_rows(bits: int) -> None:
    words = torch.tensor([[1], [2]], dtype=torch.int32 if bits == 3 else torch.uint8)
    codes = unpack_planes(words, bits).flatten().tolist()
    assert codes == [0] * (len(codes) - 2) + [1, 2]


def test_examples_of_the_formats_descriptions() -> None:
    words = torch.tensor([[0x76543210, 0xFEDCBA98 - (1 << 32)]], dtype=torch.int32)
    tensors = {
        "x.weight_packed": words, "x.weight_scale": torch.ones(1, 1), "x.weight_shape": torch.tensor([1, 16]),
    }  # fmt: skip
    (item,) = decoded_table(tensors, None).encoded
    parts = {role: tensors[name] for role, name in item.parts.items()}
    assert decode(item, parts).tolist() == [[float(value) for value in range(-8, 8)]]
    pairs = torch.zeros(1, 16, dtype=torch.uint8)
    pairs[0, :2] = torch.tensor([0x21, 0x6F])
    tensors = {"x.weight_packed": pairs, "x.weight_scale": torch.tensor([[128]], dtype=torch.uint8)}
    (item,) = decoded_table(tensors, None).encoded
    parts = {role: tensors[name] for role, name in item.parts.items()}
    assert decode(item, parts)[0, :4].tolist() == [1.0, 2.0, -12.0, 8.0]
