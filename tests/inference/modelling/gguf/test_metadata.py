"""Metadata: typed, bounded, and floats as people wrote them."""

from __future__ import annotations

import struct

import pytest

from inference.errors import CorruptCheckpoint
from inference.modelling.gguf.metadata import MAX_FACTORS, Metadata, shortest
from inference.modelling.gguf.parts import read_parts
from tests.inference.modelling.gguf.writer import Tensor, value, write_gguf


@pytest.fixture
def meta(tmp_path):
    def make(keys: dict, tensors=()) -> Metadata:
        path = tmp_path / "m.gguf"
        write_gguf(path, {"general.architecture": "x", "x.block_count": 3} | keys, tensors)
        return Metadata(read_parts([path]))

    return make


def test_values_are_read_under_the_architecture(meta):
    found = meta({"x.a": 5, "x.eps": 1e-5, "x.name": "n", "x.flag": True, "tokenizer.ggml.bos_token_id": 1})
    assert found.integer("a") == 5
    assert found.number("eps") == 1e-5
    assert found.string("name") == "n"
    assert found.boolean("flag") is True
    assert found.integer("tokenizer.ggml.bos_token_id", whole_key=True) == 1
    assert (found.integer("b"), found.number("b"), found.string("b"), found.boolean("b")) == (None,) * 4


@pytest.mark.parametrize(
    ("reader", "given", "message"),
    [
        ("integer", True, "whole number"),
        ("integer", -1, "whole number"),
        ("integer", value(2**40, "u64"), "whole number"),
        ("integer", [1, 2], "whole number"),
        ("number", "x", "a number"),
        ("string", 1, "a string"),
        ("boolean", 1, "true or false"),
        ("per_layer", [1, 2], "a whole number for each layer"),
        ("per_layer", [1, 2, -3], "a whole number for each layer"),
        ("per_layer", [1.0, 2.0, 3.0], "a whole number for each layer"),
    ],
)
def test_values_of_another_kind_are_refused(meta, reader, given, message):
    if isinstance(given, list) and isinstance(given[0], int):
        given = value(given, "i32")
    with pytest.raises(CorruptCheckpoint, match=f"the GGUF key x.a .*{message}"):
        getattr(meta({"x.a": given}), reader)("a")


def test_a_number_holds_for_all_layers_or_is_stated_for_each(meta):
    found = meta({"x.one": 7, "x.each": value([1, 0, 2], "u32")})
    assert found.per_layer("one") == [7, 7, 7]
    assert found.per_layer("each") == [1, 0, 2]
    assert found.per_layer("none") == []


def test_rows_of_a_tensor(meta):
    found = meta({}, [Tensor("t", (3, 2), bytes(24))])
    assert (found.rows("t"), found.rows("u")) == (3, None)


def test_small_tensors_are_read(meta):
    found = meta({}, [Tensor("t", (3,), struct.pack("<3f", 1.0, 0.1, 1.0625))])
    assert found.floats("t") == [1.0, 0.1, 1.0625]
    assert found.floats("u") == []
    with pytest.raises(CorruptCheckpoint, match="t is stored as F16"):
        meta({}, [Tensor("t", (2,), bytes(4), type=1)]).floats("t")
    count = MAX_FACTORS + 1
    with pytest.raises(CorruptCheckpoint, match=f"with {4 * count} bytes; at most {MAX_FACTORS} values"):
        meta({}, [Tensor("t", (count,), bytes(4 * count))]).floats("t")


@pytest.mark.parametrize("given", [1e-5, 1e-6, 0.1, 10000.0, 1e6, 0.0, -2.5, 0.22097087, float("inf")])
def test_the_shortest_spelling_is_the_writers(given):
    (stored,) = struct.unpack("<f", struct.pack("<f", given))
    assert shortest(stored) == given
