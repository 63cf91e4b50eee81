"""bitsandbytes: the state is a stranger's JSON, and has to fit the tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from inference.errors import BlazrError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from tests.inference.modelling.encodings.formats import bnb4
from tests.inference.modelling.encodings.tables import decoded_table

STATE = "x.weight.quant_state.bitsandbytes__nf4"
CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def tensors() -> dict[str, torch.Tensor]:
    made, _ = bnb4(np.random.default_rng(0), 32, 64, nested=True)
    return {f"x.{leaf}": tensor for leaf, tensor in made.items()}


def as_bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def changed_state(**values: Any) -> torch.Tensor:
    state = json.loads(bytes(tensors()[STATE].tolist()))
    return as_bytes(json.dumps(state | values))


def test_the_state_gives_shape_blocks_and_offset() -> None:
    (item,) = decoded_table(tensors(), CONFIG).encoded
    assert (item.name, item.shape, item.group_size, item.nested_size) == ("x.weight", (32, 64), 64, 256)
    assert item.offset == pytest.approx(0.75 / 8)


@pytest.mark.parametrize("leaf", [STATE, *(f"x.weight.{leaf}" for leaf in ("quant_map", "nested_absmax"))])
def test_missing_companions_are_named(leaf: str) -> None:
    left = {name: tensor for name, tensor in tensors().items() if name != leaf}
    with pytest.raises(MissingTensor, match=leaf):
        decoded_table(left, CONFIG)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (as_bytes("{"), CorruptCheckpoint),
        (as_bytes("[" * 2000), CorruptCheckpoint),
        (as_bytes(" " * 5000 + "{}"), CorruptCheckpoint),
        (as_bytes("[]"), CorruptCheckpoint),
        (changed_state(shape=[1 << 40, 2]), CorruptCheckpoint),
        (changed_state(shape="32"), CorruptCheckpoint),
        (changed_state(shape=[32, -64]), CorruptCheckpoint),
        (changed_state(shape=[32, 65]), TensorShapeMismatch),
        (changed_state(blocksize=0), CorruptCheckpoint),
        (changed_state(blocksize=128), TensorShapeMismatch),
        (changed_state(nested_blocksize=None), CorruptCheckpoint),
        (changed_state(nested_blocksize=8), TensorShapeMismatch),
        (changed_state(nested_offset="1"), CorruptCheckpoint),
        (changed_state(nested_offset=float("nan")), CorruptCheckpoint),
        (changed_state(nested_offset=1e300), CorruptCheckpoint),
    ],
)
def test_broken_states_are_refused(state: torch.Tensor, error: type[BlazrError]) -> None:
    with pytest.raises(error, match=r"bitsandbytes__nf4"):
        decoded_table(tensors() | {STATE: state}, CONFIG)


def test_the_config_has_to_fit() -> None:
    with pytest.raises(UnsupportedFormat, match=r"bnb_4bit_quant_type 'fp4', but x.weight is stored as nf4"):
        decoded_table(tensors(), CONFIG | {"bnb_4bit_quant_type": "fp4"})
    with pytest.raises(UnsupportedFormat, match=r"says hqq, but x\.weight\.absmax"):
        decoded_table(tensors(), {"quant_method": "hqq"})
    with pytest.raises(TensorShapeMismatch, match=r"x.weight.quant_map"):
        decoded_table(tensors() | {"x.weight.quant_map": torch.ones(15)}, CONFIG)
