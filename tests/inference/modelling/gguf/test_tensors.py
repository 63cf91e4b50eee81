"""CheckpointTensor: places of experts and joined parts, and shapes that can't be what they are named after."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.gguf.parts import read_parts
from inference.modelling.gguf.tensors import CheckpointTensor, Heads, Rename, checkpoint_tensors
from tests.inference.modelling.gguf.writer import TYPES, Tensor, write_gguf


@pytest.fixture
def read(tmp_path):
    def run(*rows: Rename, heads: Heads | None = None, **shapes: tuple[int, ...]) -> dict[str, CheckpointTensor]:
        number, values, size = TYPES["Q8_0"]
        tensors = []
        for name, shape in shapes.items():
            count = 1
            for dimension in shape:
                count *= dimension
            is_plain = bool(shape[-1] % values)
            data = bytes(4 * count if is_plain else count // values * size)
            tensors.append(Tensor(f"blk.0.{name}", shape, data, type=0 if is_plain else number))
        write_gguf(tmp_path / "m.gguf", {}, tensors)
        parts = read_parts([tmp_path / "m.gguf"])
        return checkpoint_tensors(parts, {}, rows, prefix="l.", num_layers=1, heads={0: heads} if heads else {})

    return run


def test_experts_are_parts_of_a_stack(read):
    found = read(Rename("e", "e.{e}.w", "experts"), e=(3, 4, 32))
    assert list(found) == ["l.0.e.0.w", "l.0.e.1.w", "l.0.e.2.w"]
    first, second, _ = (tensor.segments[0] for tensor in found.values())
    assert (first.rows, first.columns, second.begin - first.begin) == (4, 32, 4 * 34)
    assert found["l.0.e.0.w"].shape == (4, 32)


def test_parts_are_joined_row_by_row_or_expert_by_expert(read):
    joined = read(Rename(("a", "b"), "ab", "join"), a=(2, 32), b=(3, 32))["l.0.ab"]
    assert (joined.shape, [segment.rows for segment in joined.segments]) == ((5, 32), [2, 3])
    stacks = read(Rename(("a", "b"), "ab", "join_experts"), a=(2, 4, 32), b=(2, 4, 32))["l.0.ab"]
    assert (stacks.shape, len(stacks.segments)) == ((2, 8, 32), 4)
    begins = [segment.begin for segment in stacks.segments]
    assert begins[2] - begins[0] == begins[3] - begins[1] == 4 * 34


def test_deepseeks_two_expansions_are_one_again(read):
    found = read(Rename(("k", "v"), "kv", "latent"), k=(2, 8, 6), v=(2, 5, 8))["l.0.kv"]
    assert found.shape == (2 * (6 + 5), 8)
    assert [(segment.transposed, segment.rows, segment.columns) for segment in found.segments] == [
        (True, 8, 6), (False, 5, 8), (True, 8, 6), (False, 5, 8),
    ]  # fmt: skip


def test_shapes_lose_and_gain_what_the_converter_changed(read):
    rows = [
        Rename("c", "c", "conv"), Rename("a", "a", "a_log_vector"), Rename("r", "r", "row"), Rename("n", "n", "norm"),
    ]  # fmt: skip
    found = read(*rows, c=(6, 4), a=(6, 1), r=(6,), n=(6,))
    assert {name: tensor.shape for name, tensor in found.items()} == {
        "l.0.c": (6, 1, 4), "l.0.a": (6,), "l.0.r": (1, 6), "l.0.n": (6,),
    }  # fmt: skip
    assert (found["l.0.a"].folded, found["l.0.n"].folded) == ("negative_exp", "plus_one")


@pytest.mark.parametrize(
    ("row", "shapes", "message"),
    [
        (Rename("q", "q", "rotary"), {"q": (10, 4)}, "10 rows, which 4 heads of an even width"),
        (Rename("e", "e.{e}", "experts"), {"e": (10, 4)}, "three axes"),
        (Rename(("a", "b"), "ab", "join"), {"a": (2, 4), "b": (2, 5)}, "can't be put together"),
        (Rename(("a", "b"), "ab", "join_experts"), {"a": (2, 3, 4), "b": (3, 3, 4)}, "different numbers of experts"),
        (Rename(("k", "v"), "kv", "latent"), {"k": (2, 8, 6), "v": (2, 5, 7)}, "are needed"),
        (Rename(("k", "v"), "kv", "latent"), {"k": (8, 6), "v": (2, 5, 7)}, "are needed"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(read, row, shapes, message):
    with pytest.raises(TensorShapeMismatch, match=message):
        read(row, heads=Heads(4, 2), **shapes)
