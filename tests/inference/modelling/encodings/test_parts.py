"""Parts: companions that are missing, of another dtype, or there twice."""

from __future__ import annotations

import struct

import pytest

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedFormat
from inference.modelling.encoded_tensor import EncodedTensor
from inference.modelling.encodings.parts import (
    InputOrder,
    Parts,
    expect_matrix,
    expect_shape,
    find_input_order,
    is_repeated,
)
from inference.modelling.families.config import TensorInfo

INFO = TensorInfo("F16", (2, 4))


def parts(**tensors: TensorInfo) -> Parts:
    return Parts(tensors, lambda info: b"")


def test_companions_are_found_by_name_and_dtype() -> None:
    found = parts(a=INFO)
    assert found.need("a", "owner", ("F32", "F16")) == INFO
    assert found.find("b") is None
    with pytest.raises(MissingTensor, match="owner holds codes, but b, which they need, is missing"):
        found.need("b", "owner", ("F16",))
    with pytest.raises(UnsupportedFormat, match="a is stored as F16; I32 is needed beside owner"):
        found.need("a", "owner", ("I32",))


def test_a_weight_is_stored_once() -> None:
    found = parts(x=INFO, codes=INFO)
    found.add(EncodedTensor("w", (2, 4), "awq", {"qweight": "codes"}))
    assert found.taken == {"codes"}
    for name in ("w", "x"):
        with pytest.raises(TensorShapeMismatch, match=f"{name} is stored twice"):
            found.add(EncodedTensor(name, (2, 4), "awq", {"qweight": "codes"}))


@pytest.mark.parametrize("letter", ["i", "q"])
@pytest.mark.parametrize(
    ("groups", "group_size", "order"),
    [
        ([0] * 16 + [1] * 16, 16, "neighbours"),
        ([0] * 16 + [1] * 3, 16, "neighbours"),
        ([0] * 32, 16, "neighbours"),  # as some write it
        ([1] * 16 + [0] * 16, 16, "permuted"),
        ([1, 0] * 16, 16, "permuted"),
        ([0] * 15 + [1] * 17, 16, None),
        ([0] * 8 + [1] * 8, 8, None),  # no product takes such groups
    ],
)
def test_groups_are_of_neighbours_or_as_many(
    letter: str, groups: list[int], group_size: int, order: InputOrder | None
) -> None:
    content = struct.pack(f"<{len(groups)}{letter}", *groups)
    info = TensorInfo("I64" if letter == "q" else "I32", (len(groups),), end=len(content))
    assert find_input_order(Parts({"g_idx": info}, lambda _: content), "g_idx", group_size) == order
    assert find_input_order(Parts({}, lambda _: b""), None, group_size) == "neighbours"


@pytest.mark.parametrize("wrong", [2, -1, 1 << 31])
def test_a_group_that_is_not_there_is_refused(wrong: int) -> None:
    content = struct.pack("<32q", *[0] * 31, wrong)
    found = Parts({"x.g_idx": TensorInfo("I64", (32,), end=len(content))}, lambda _: content)
    with pytest.raises(CorruptCheckpoint, match=rf"x\.g_idx holds {wrong}; the weight has 2 groups"):
        find_input_order(found, "x.g_idx", 16)


@pytest.mark.parametrize("size", [12, 1 << 18, (1 << 19) + 12])
def test_repetitions_are_looked_for_piece_by_piece(size: int) -> None:
    content = bytearray(b"abc" * size)[:size]
    info, reads = TensorInfo("I32", (size // 4,), begin=5, end=5 + size), []

    def read(piece: TensorInfo) -> bytes:
        reads.append(piece.end - piece.begin)
        return bytes(content[piece.begin - 5 : piece.end - 5])

    assert is_repeated(Parts({}, read), info, b"abc")
    assert sum(reads) == size
    assert max(reads) <= 1 << 18, "the most that is read of a small tensor"
    content[-1] ^= 1
    assert not is_repeated(Parts({}, read), info, b"abc")


@pytest.mark.parametrize("shape", [(), (0, 4), (1 << 40, 4)])
def test_impossible_sizes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TensorShapeMismatch, match="a matrix is needed"):
        parts().add(EncodedTensor("w", shape, "awq", {}))


def test_shapes_are_checked() -> None:
    assert expect_matrix("a", INFO) == (2, 4)
    with pytest.raises(TensorShapeMismatch, match=r"a has shape \[2\]; a matrix"):
        expect_matrix("a", TensorInfo("F16", (2,)))
    with pytest.raises(TensorShapeMismatch, match=r"a has shape \[2, 4\]; \[4, 2\] is needed by b"):
        expect_shape("a", INFO, (4, 2), "b")
