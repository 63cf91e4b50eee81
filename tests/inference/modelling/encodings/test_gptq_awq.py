"""GPTQ and AWQ: told apart by shapes, and checked against the config."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from inference.errors import BlazrError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from tests.inference.modelling.encodings.formats import Make, awq, gptq
from tests.inference.modelling.encodings.tables import decoded_table

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}


def tensors(make: Make = gptq, outputs: int = 64, inputs: int = 128) -> dict[str, torch.Tensor]:
    made, _ = make(np.random.default_rng(0), outputs, inputs)
    return {f"x.{leaf}": tensor for leaf, tensor in made.items()}


@pytest.mark.parametrize("make", [gptq, awq])
@pytest.mark.parametrize("sizes", [(64, 128), (128, 64), (64, 64), (512, 64)])
def test_shapes_tell_the_two_apart(make: Make, sizes: tuple[int, int]) -> None:
    (item,) = decoded_table(tensors(make, *sizes), None).encoded
    assert (item.coding, item.shape, item.bits, item.group_size) == (make.__name__, sizes, 4, 32)


def test_modules_may_have_bits_of_their_own() -> None:
    stated = GPTQ | {"dynamic": {r"+:.*x.*": {"bits": 8, "group_size": 64}, "-:y": {}}}
    for bits, group in ((4, 32), (8, 64)):
        (item,) = decoded_table(tensors(partial(gptq, bits=bits, group=group)), stated).encoded
        assert (item.bits, item.group_size) == (bits, group)


def test_the_last_group_may_be_cut() -> None:
    (item,) = decoded_table(tensors(partial(gptq, group=48)), GPTQ | {"group_size": 48}).encoded
    assert item.group_size == 48


@pytest.mark.parametrize(
    ("make", "config", "error", "message"),
    [
        (gptq, AWQ, UnsupportedFormat, r"config.json says awq, but x.qweight of shape .* is laid out as gptq"),
        (awq, GPTQ, UnsupportedFormat, r"config.json says gptq, but x.qweight of shape .* is laid out as awq"),
        (gptq, {"quant_method": "fp8"}, UnsupportedFormat, "says fp8, but x.qweight"),
        (gptq, GPTQ | {"bits": 8}, TensorShapeMismatch, r"says 8 bits, but x.qweight and x.qzeros .* are 4 bits"),
        (
            gptq,
            GPTQ | {"group_size": 64},
            TensorShapeMismatch,
            "groups of 64, but x.qweight has 128 inputs .* 4 groups",
        ),
        (gptq, GPTQ | {"bits": "4"}, CorruptCheckpoint, "bits is '4'; it must be a whole number"),
        (awq, AWQ | {"bits": 8}, UnsupportedFormat, "AWQ with 8 bits; 4 are read"),
        (partial(gptq, group=48), None, TensorShapeMismatch, "128 inputs and scales for 3 groups"),
    ],
)
def test_contradictions_name_both_sides(
    make: Make, config: dict[str, Any] | None, error: type[BlazrError], message: str
) -> None:
    with pytest.raises(error, match=message):
        decoded_table(tensors(make), config)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_zero_points_in_the_middle_are_left_out_where_the_config_says_so(bits: int) -> None:
    stated = GPTQ | {"bits": bits, "sym": True}
    made = tensors(partial(gptq, bits=bits, symmetric=True), 96, 128)
    (item,) = decoded_table(made, stated).encoded
    assert set(item.parts) == {"qweight", "scales", "g_idx"}
    made["x.qzeros"][-1, -1] ^= 1 << 31
    for config in (stated, stated | {"sym": False}, None):  # one differs; and nobody says so
        (item,) = decoded_table(made, config).encoded
        assert "qzeros" in item.parts
        made = tensors(partial(gptq, bits=bits, symmetric=True), 96, 128)


@pytest.mark.parametrize("leaf", ["qzeros", "scales"])
def test_missing_companions_are_named(leaf: str) -> None:
    left = {name: tensor for name, tensor in tensors().items() if not name.endswith(leaf)}
    with pytest.raises(MissingTensor, match=f"x.qweight holds codes, but x.{leaf}, which they need, is missing"):
        decoded_table(left, GPTQ)


@pytest.mark.parametrize(
    ("leaf", "changed", "error"),
    [
        ("qweight", torch.zeros(16, 32, dtype=torch.int32), TensorShapeMismatch),
        ("qweight", torch.zeros(16, 64), UnsupportedFormat),
        ("qweight", torch.zeros(17, 64, dtype=torch.int32), TensorShapeMismatch),
        ("qzeros", torch.zeros(4, 7, dtype=torch.int32), TensorShapeMismatch),
        ("qzeros", torch.zeros(3, 8, dtype=torch.int32), TensorShapeMismatch),
        ("g_idx", torch.zeros(127, dtype=torch.int32), TensorShapeMismatch),
        ("scales", torch.zeros(64), TensorShapeMismatch),
    ],
)
def test_shapes_that_do_not_fit_are_refused(leaf: str, changed: torch.Tensor, error: type[BlazrError]) -> None:
    with pytest.raises(error, match=r"x\."):
        decoded_table(tensors() | {f"x.{leaf}": changed}, GPTQ)
