"""Codes of GGUF blocks: with rounded scales they give the values of the blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.modelling.gguf.block_types import BY_NAME
from inference.modelling.layers.coded import code_plainly
from inference.modelling.quantisation import GGUF_FORMS
from inference.modelling.weights.block_codes import CODE_TYPES, block_codes
from inference.modelling.weights.block_values import dequantise

FACTORS = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "MXFP4": (),
    "NVFP4": (),
}
"""Where blocks hold float16 factors; others begin with one."""
SINGLE = ("Q4_0 (ggjt 1)", "Q4_1 (ggjt 1)", "Q4_0 (ggjt 2)", "Q4_1 (ggjt 2)", "Q8_0 (before ggjt 3)")
"""Types with factors of twice as many bytes."""
ROWS = 3


def random_blocks(name: str) -> torch.Tensor:
    """Three rows of two blocks with any codes and factors as weights have them."""
    kind = BY_NAME[name]
    generator = np.random.default_rng(5)
    raw = generator.integers(0, 256, (2 * ROWS, kind.num_bytes), dtype=np.uint8)
    for place in FACTORS.get(kind.form_name, (0,)):
        factor = (generator.standard_normal(2 * ROWS) * 0.01).astype(np.float16)
        if name in SINGLE:
            raw[:, 2 * place : 2 * place + 4] = factor.astype(np.float32).view(np.uint8).reshape(-1, 4)
        else:
            raw[:, place : place + 2] = factor.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        raw[:, 0] = generator.integers(115, 128, 2 * ROWS)
    return torch.from_numpy(raw)


def test_every_form_has_its_codes():
    assert {BY_NAME[name].form_name for name in CODE_TYPES} == set(GGUF_FORMS)


@pytest.mark.parametrize("name", CODE_TYPES)
def test_rows_have_the_values_of_their_blocks(name):
    kind, blocks = BY_NAME[name], random_blocks(name)
    form = GGUF_FORMS[kind.form_name]
    found = block_codes(blocks, kind, ROWS)
    expected = dequantise(blocks, kind).view(ROWS, -1)
    assert found.form == form
    assert found.codes.shape == expected.shape
    assert int(found.codes.max()) < 1 << form.bits
    assert found.scales.shape == (ROWS, 2 * kind.values // form.group)
    assert torch.equal(found.dense(torch.float32), expected)
    rounded = code_plainly(found).dense(torch.float32)
    if "_K" not in name and name != "IQ4_XS":
        assert torch.equal(rounded, expected)  # nothing was multiplied out
    scales = found.without_factors().scales
    limit = 2**-11 * (scales.abs().amax() * (1 << form.bits) * 2 + expected.abs().amax())
    assert (rounded - expected).abs().max() <= limit


@pytest.mark.parametrize("name", GGUF_FORMS)
def test_memory_is_little_more_than_the_file(name):
    kind = BY_NAME[name]
    grown = GGUF_FORMS[name].bits_per_weight / (8 * kind.num_bytes / kind.values)
    assert grown <= (1.2 if name == "Q2_K" else 1.15)  # a file of Q2_K has other types beside it
