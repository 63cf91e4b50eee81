"""Every format's values, against writers from the formats' descriptions: whole, in pieces, over shapes and edges."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.modelling.weights.decoding.decode import decode
from tests.inference.modelling.encodings.formats import FORMATS
from tests.inference.modelling.encodings.tables import decoded_table
from tests.inference.modelling.encodings.write_vectors import PATH, loaded
from tests.inference.modelling.weights.decoding.values import check

VECTORS = json.loads(PATH.read_text())


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_the_writer(name: str) -> None:
    form = FORMATS[name]
    check(form.make(np.random.default_rng(1), 96, 192), form.config)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(FORMATS)),
    high=st.integers(1, 4),
    wide=st.integers(1, 5),
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 128), max_size=3),
)
def test_pieces_of_any_shape_are_the_whole(name: str, high: int, wide: int, seed: int, cuts: list[int]) -> None:
    form = FORMATS[name]
    check(form.make(np.random.default_rng(seed), 32 * high, 64 * wide), form.config, tuple(cuts))


@pytest.mark.parametrize("name", VECTORS)
def test_values_of_the_programs_that_write_the_formats(name: str) -> None:
    vector = VECTORS[name]
    tensors = {f"x.{leaf}": loaded(entry) for leaf, entry in vector["tensors"].items()}
    (item,) = decoded_table(tensors, vector["config"]).encoded
    found = decode(item, {role: tensors[part] for role, part in item.parts.items()})
    assert torch.equal(found, loaded(vector["values"]))
