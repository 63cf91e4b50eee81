"""Parts of a split file: joined in order, and refused when one is missing or foreign."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, MissingTensor
from inference.modelling.gguf.parts import read_parts
from tests.inference.modelling.gguf.writer import Tensor, value, write_gguf


@pytest.fixture
def parts(tmp_path):
    """Three parts with a tensor each."""
    paths = []
    for number in range(3):
        path = tmp_path / f"m-{number + 1:05}-of-00003.gguf"
        keys = {"split.no": value(number, "u16"), "split.count": value(3, "u16"), "split.tensors.count": value(3)}
        if number == 0:
            keys["general.architecture"] = "llama"
        write_gguf(path, keys, [Tensor(f"t{number}", (2,), bytes(8))])
        paths.append(path)
    return paths


def test_a_number_that_is_an_array_is_named_as_one(parts):
    write_gguf(parts[0], {"split.count": value([3, 3])}, [])
    with pytest.raises(MissingTensor, match=r"split\.count array of 2 uint32\)"):
        read_parts(parts[:1])


def test_parts_are_joined(parts):
    found = read_parts(parts)
    assert found.keys["general.architecture"] == "llama"
    assert {name: number for name, (number, _) in found.tensors.items()} == {"t0": 0, "t1": 1, "t2": 2}


def test_a_part_alone_names_what_is_missing(parts):
    with pytest.raises(MissingTensor, match="part of a split GGUF file"):
        read_parts(parts[:1])


def test_a_missing_part_is_found(parts):
    with pytest.raises(CorruptCheckpoint, match="says that it is part 0 of 3"):
        read_parts(parts[:2])


def test_parts_in_another_order_are_refused(parts):
    with pytest.raises(CorruptCheckpoint, match="should be part 0 of 3, but says that it is part 1"):
        read_parts([parts[1], parts[0], parts[2]])


def test_a_tensor_in_two_parts_is_refused(parts):
    keys = {"split.no": value(2, "u16"), "split.count": value(3, "u16")}
    write_gguf(parts[2], keys, [Tensor("t0", (2,), bytes(8))])
    with pytest.raises(CorruptCheckpoint, match="tensor t0 is in"):
        read_parts(parts)


def test_fewer_tensors_than_stated_are_refused(parts):
    keys = {"split.no": value(2, "u16"), "split.count": value(3, "u16")}
    write_gguf(parts[2], keys, [])
    with pytest.raises(MissingTensor, match="states 3 tensors"):
        read_parts(parts)


def test_a_file_that_is_not_split_is_its_only_part(tmp_path):
    write_gguf(tmp_path / "m.gguf", {"a": 1}, [Tensor("t", (2,), bytes(8))])
    assert list(read_parts([tmp_path / "m.gguf"]).tensors) == ["t"]
