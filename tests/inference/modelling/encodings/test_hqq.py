"""HQQ: settings in small tensors, which have to fit the codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.errors import BlazrError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from tests.inference.modelling.encodings.formats import hqq
from tests.inference.modelling.encodings.tables import decoded_table


def tensors(bits: int = 4) -> dict[str, torch.Tensor]:
    made, _ = hqq(np.random.default_rng(0), 32, 64, bits=bits)
    return {f"x.{leaf}": tensor for leaf, tensor in made.items()}


def test_settings_give_shape_and_groups() -> None:
    table = decoded_table(tensors(), {"quant_method": "hqq"})
    (item,) = table.encoded
    assert (item.name, item.shape, item.bits, item.group_size, item.axis) == ("x.weight", (32, 64), 4, 64, 1)
    assert list(table.tensors) == ["x.weight"]


@pytest.mark.parametrize("leaf", ["scale", "zero", "nbits", "axis", "shape"])
def test_missing_companions_are_named(leaf: str) -> None:
    left = {name: tensor for name, tensor in tensors().items() if name != f"x.{leaf}"}
    with pytest.raises(MissingTensor, match=f"x.W_q holds codes, but x.{leaf}"):
        decoded_table(left, None)


@pytest.mark.parametrize(
    ("leaf", "changed", "error"),
    [
        ("nbits", torch.tensor(5), UnsupportedFormat),
        ("nbits", torch.tensor(8), TensorShapeMismatch),
        ("axis", torch.tensor(2), UnsupportedFormat),
        ("shape", torch.tensor([32, 65]), TensorShapeMismatch),
        ("shape", torch.tensor([1 << 40, 64]), CorruptCheckpoint),
        ("shape", torch.tensor([2048]), CorruptCheckpoint),
        ("shape", torch.zeros(9).int(), CorruptCheckpoint),
        ("scale", torch.ones(31, 1), TensorShapeMismatch),
        ("zero", torch.ones(2, 1), TensorShapeMismatch),
        ("W_q", torch.zeros(15, 64, dtype=torch.uint8), TensorShapeMismatch),
        ("W_q", torch.zeros(16, 64), UnsupportedFormat),
        ("view_as_float", torch.tensor(1), UnsupportedFormat),
        ("quant_zero", torch.tensor(1), UnsupportedFormat),
    ],
)
def test_contradictions_are_refused(leaf: str, changed: torch.Tensor, error: type[BlazrError]) -> None:
    with pytest.raises(error, match=r"x\."):
        decoded_table(tensors() | {f"x.{leaf}": changed}, None)


def test_the_config_has_to_fit() -> None:
    stated = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3}}}
    with pytest.raises(TensorShapeMismatch, match=r"says nbits 3, but x.W_q has 4 bits"):
        decoded_table(tensors(), stated)
    with pytest.raises(UnsupportedFormat, match=r"says gptq, but x.W_q belongs to hqq"):
        decoded_table(tensors(), {"quant_method": "gptq"})
