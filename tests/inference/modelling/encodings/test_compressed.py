"""compressed-tensors: a weight has to fit one of the config's groups."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from inference.errors import BlazrError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encodings.compressed import WeightScheme, schemes_of
from inference.modelling.encodings.quantisation_config import read_quantisation_config
from tests.inference.modelling.encodings.formats import packed
from tests.inference.modelling.encodings.tables import decoded_table


def config(*weights: dict[str, Any]) -> dict[str, Any]:
    groups = {f"group_{number}": {"targets": ["Linear"], "weights": item} for number, item in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel"}


def tensors(**options: Any) -> dict[str, torch.Tensor]:
    made, _ = partial(packed, **options)(np.random.default_rng(0), 64, 128)
    return {f"x.{leaf}": tensor for leaf, tensor in made.items()}


def test_schemes_of_groups() -> None:
    block = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 128]}
    assert schemes_of(read_quantisation_config(config(W4, W8, block, {"num_bits": 8, "group_size": -1}))) == [
        WeightScheme(4, "int", "group", 32), WeightScheme(8, "int", "channel"),
        WeightScheme(8, "float", "block", 0, (64, 128)), WeightScheme(8, "int", "channel"),
    ]  # fmt: skip
    assert schemes_of(None) == []


@pytest.mark.parametrize(
    "weights",
    [
        W4 | {"num_bits": 9}, W4 | {"num_bits": "4"}, W4 | {"strategy": "row"}, W4 | {"type": "complex"},
        W4 | {"group_size": 1 << 30}, W4 | {"block_structure": [1]}, W4 | {"block_structure": [0, 4]},
    ],
)  # fmt: skip
def test_impossible_schemes_are_refused(weights: dict[str, Any]) -> None:
    with pytest.raises((UnsupportedFormat, CorruptCheckpoint), match="config_groups"):
        schemes_of(read_quantisation_config(config(weights)))


def test_each_weight_finds_its_group() -> None:
    mixed = config(W8, W4)
    assert decoded_table(tensors(), mixed).encoded[0].bits == 4
    found = decoded_table(tensors(bits=8, group=0), mixed).encoded[0]
    assert (found.bits, found.group_size) == (8, 128)


@pytest.mark.parametrize(
    ("changed", "stated", "error", "message"),
    [
        ({}, config(W8), TensorShapeMismatch, r"x.weight_packed of .*64, 16\] .*config_groups.*8 bits \(int\) by row"),
        ({}, config(W4 | {"group_size": 64}), TensorShapeMismatch, r"4 bits \(int\) by 64"),
        ({}, config(NVFP4), TensorShapeMismatch, r"contradicts .*4 bits \(float\) by 16"),
        ({}, {"quant_method": "gptq"}, UnsupportedFormat, "says gptq, but x.weight_packed belongs to compressed"),
        ({"weight_scale": None}, config(W4), MissingTensor, "x.weight_scale, which they need, is missing"),
        ({"weight_shape": None}, config(W4), MissingTensor, "x.weight_shape, which they need, is missing"),
        ({"weight_shape": torch.tensor([64, 1 << 40])}, config(W4), TensorShapeMismatch, "x.weight_shape says"),
        ({"weight_shape": torch.tensor([63, 128])}, config(W4), TensorShapeMismatch, "x.weight_shape says"),
        ({"weight_shape": torch.tensor([64, 256])}, config(W4), TensorShapeMismatch, "contradicts"),
        ({"weight_zero_point": torch.zeros(8, 3).int()}, config(W4), TensorShapeMismatch, "x.weight_zero_point has"),
        ({"weight_g_idx": torch.zeros(3).int()}, config(W4), TensorShapeMismatch, "x.weight_g_idx has shape"),
    ],
)
def test_contradictions_name_both_sides(
    changed: dict[str, torch.Tensor | None], stated: dict[str, Any], error: type[BlazrError], message: str
) -> None:
    found = tensors()
    for leaf, tensor in changed.items():
        found.pop(f"x.{leaf}", None)
        if tensor is not None:
            found[f"x.{leaf}"] = tensor
    with pytest.raises(error, match=message):
        decoded_table(found, stated)
