"""Compare decoded weights with those of a writer."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.weights.decoding.decode import decode
from tests.inference.modelling.encodings.formats import Made
from tests.inference.modelling.encodings.tables import decoded_table

ROUNDING = 2e-6
"""Of one product or two in float32, against the largest magnitude."""


def read(made: Made, config: object) -> tuple[EncodedTensor, dict[str, torch.Tensor]]:
    """What the headers say of one weight, and its parts."""
    tensors = {f"x.{leaf}": tensor for leaf, tensor in made[0].items()}
    table = decoded_table(tensors, config)  # type: ignore[arg-type]
    (item,) = table.encoded
    assert list(table.tensors) == ["x.weight"]
    return item, {role: tensors[name] for role, name in item.parts.items()}


def check(made: Made, config: object, cuts: tuple[int, ...] = ()) -> None:
    item, parts = read(made, config)
    assert item.shape == made[1].shape
    edges = [0, *sorted(min(cut, item.shape[0]) for cut in cuts), item.shape[0]]
    pieces = [decode(item, parts, *pair) for pair in itertools.pairwise(edges)]
    found = torch.cat(pieces).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, made[1], rtol=0, atol=ROUNDING * np.abs(made[1]).max())
