"""CheckpointTensor: places of experts and joined parts, and shapes that can't be what they are named after."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.gguf import tensors
from inference.modelling.gguf.parts import read_parts
from inference.modelling.gguf.tensors import CheckpointTensor, DeltaHeads, Heads, Rename, checkpoint_tensors
from tests.inference.modelling.gguf.writer import TYPES, Tensor, write_gguf


@pytest.fixture
def read(tmp_path):
    def run(
        *rows: Rename, heads: Heads | None = None, delta: DeltaHeads | None = None, **shapes: tuple[int, ...]
    ) -> dict[str, CheckpointTensor]:
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
        by_layer = {0: heads} if heads else {}
        return checkpoint_tensors(parts, {}, rows, prefix="l.", num_layers=1, heads=by_layer, delta=delta)

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
        Rename("e", "e", "exp_vector"),
    ]  # fmt: skip
    found = read(*rows, c=(6, 4), a=(6, 1), r=(6,), n=(6,), e=(6, 1))
    assert {name: tensor.shape for name, tensor in found.items()} == {
        "l.0.c": (6, 1, 4), "l.0.a": (6,), "l.0.r": (1, 6), "l.0.n": (6,), "l.0.e": (6,),
    }  # fmt: skip
    assert [found[f"l.0.{name}"].folded for name in "ane"] == ["negative_exp", "plus_one", "exp"]


DELTA = DeltaHeads(keys=2, values=6, width=12)


def test_value_heads_of_a_key_head_are_neighbours_again(read):
    """Stored are heads 0 and 3, 1 and 4, 2 and 5, two rows each."""
    found = read(
        Rename("r", "r", order="rows"), Rename("q", "q", order="last_rows"), Rename("o", "o", order="columns"),
        delta=DELTA, r=(12, 4), q=(17, 4), o=(4, 192),
    )  # fmt: skip

    def rows(name: str) -> list[tuple[int, int]]:
        segments, first = found[name].segments, min(segment.begin for segment in found[name].segments)
        return [((segment.begin - first) // 16, segment.rows) for segment in segments]

    order = [(0, 2), (4, 2), (8, 2), (2, 2), (6, 2), (10, 2)]
    assert rows("l.0.r") == order
    assert rows("l.0.q") == [(0, 5), *((5 + begin, count) for begin, count in order)]
    assert (found["l.0.o"].column_heads, found["l.0.o"].code_type) == ((3, 2), "Q8_0")


def test_columns_whose_heads_share_scales_are_no_codes(read):
    found = read(Rename("o", "o", order="columns"), delta=DELTA, o=(4, 96))["l.0.o"]
    assert (found.column_heads, found.code_type) == ((3, 2), None)


def test_one_value_head_for_each_key_head_stays(read):
    heads = DeltaHeads(keys=6, values=6, width=12)
    found = read(Rename("r", "r", order="rows"), Rename("o", "o", order="columns"), delta=heads, r=(12, 4), o=(4, 192))
    assert [(len(item.segments), item.column_heads) for item in found.values()] == [(1, (1, 1))] * 2


def test_beta_and_alpha_of_a_key_head_lie_behind_each_other(read):
    found = read(Rename("ba", "{e}", "beta_alpha"), delta=DELTA, ba=(12, 4))
    begin = found["l.0.b"].segments[0].begin
    places = {
        name: [((item.begin - begin) // 16, item.rows) for item in tensor.segments] for name, tensor in found.items()
    }
    assert places == {"l.0.b": [(0, 3), (6, 3)], "l.0.a": [(3, 3), (9, 3)]}
    assert {tensor.shape for tensor in found.values()} == {(6, 4)}


def test_halves_of_experts_are_gates_and_ups(read):
    found = read(Rename("e", "{e}.gate_proj", "expert_halves"), e=(2, 6, 4))
    begin = found["l.0.0.gate_proj"].segments[0].begin
    assert {name: (item.segments[0].begin - begin) // 16 for name, item in found.items()} == {
        "l.0.0.gate_proj": 0, "l.0.0.up_proj": 3, "l.0.1.gate_proj": 6, "l.0.1.up_proj": 9,
    }  # fmt: skip
    assert {item.shape for item in found.values()} == {(3, 4)}


def test_pieces_are_limited(read, monkeypatch):
    monkeypatch.setattr(tensors, "MAX_PIECES", 8)
    rows = Rename("e", "e.{e}.w", "experts"), Rename("r", "r", order="rows")
    assert len(read(*rows, e=(8, 4, 32), delta=DELTA)) == 8
    with pytest.raises(CorruptCheckpoint, match=r"blk\.0\.e .* 9 experts and heads; the limit is 8"):
        read(*rows, e=(9, 4, 32))
    with pytest.raises(CorruptCheckpoint, match=r"blk\.0\.r .* 10 experts and heads"):
        read(*rows, e=(4, 4, 32), r=(12, 4), delta=DELTA)


def test_scales_beside_weights_are_factors_of_their_pieces(read):
    row = Rename("m.weight", "m.weight")
    stack, experts = Rename("s.weight", "s.weight"), Rename("e.weight", "e.{e}.weight", "experts")
    joined = Rename(("a.weight", "b.weight"), "ab.weight", "join_experts")
    shapes = {
        "m.weight": (4, 32), "m.scale": (1,), "m.input_scale": (1,), "s.weight": (3, 4, 32), "s.scale": (3,),
        "e.weight": (3, 4, 32), "e.scale": (3,), "a.weight": (2, 4, 32), "a.scale": (2,), "b.weight": (2, 4, 32),
    }  # fmt: skip
    found = read(row, stack, experts, joined, **shapes)

    def factors(name: str) -> list[int | None]:
        places = [segment.factor for segment in found[name].segments]
        first = min((place[1] for place in places if place), default=0)
        return [place and (place[1] - first) // 4 for place in places]

    assert (factors("l.0.m.weight"), factors("l.0.s.weight")) == ([0], [0, 1, 2])
    assert [segment.rows for segment in found["l.0.s.weight"].segments] == [4, 4, 4]
    assert factors("l.0.ab.weight") == [0, None, 1, None]
    singles = [found[f"l.0.e.{expert}.weight"].segments[0].factor for expert in range(3)]
    assert [place[1] - singles[0][1] for place in singles] == [0, 4, 8]
    assert found["l.0.m.weight"].code_type == "Q8_0"


@pytest.mark.parametrize(
    ("row", "shapes", "message"),
    [
        (Rename("q", "q", "rotary"), {"q": (10, 4)}, "10 rows, which 4 heads of an even width"),
        (Rename("e", "e.{e}", "experts"), {"e": (10, 4)}, "three axes"),
        (Rename(("a", "b"), "ab", "join"), {"a": (2, 4), "b": (2, 5)}, "can't be put together"),
        (Rename(("a", "b"), "ab", "join_experts"), {"a": (2, 3, 4), "b": (3, 3, 4)}, "different numbers of experts"),
        (Rename(("k", "v"), "kv", "latent"), {"k": (2, 8, 6), "v": (2, 5, 7)}, "are needed"),
        (Rename(("k", "v"), "kv", "latent"), {"k": (8, 6), "v": (2, 5, 7)}, "are needed"),
        (Rename("m.weight", "m"), {"m.weight": (4, 32), "m.scale": (4,)}, r"m\.scale .* shape \[4\]; one float32"),
        (Rename("m.weight", "m"), {"m.weight": (4, 32), "m.scale": (32,)}, r"m\.scale is stored as Q8_0"),
        (Rename("r", "r", order="rows"), {"r": (10, 4)}, "6 heads of values for 2 of keys don't give"),
        (Rename("q", "q", order="last_rows"), {"q": (11, 4)}, "6 heads of values for 2 of keys don't give"),
        (Rename("o", "o", order="columns"), {"o": (4, 10)}, "6 heads of values for 2 of keys don't give"),
        (Rename("ba", "{e}", "beta_alpha"), {"ba": (11, 4)}, "11 rows, which 6 heads of values for 2 of keys"),
        (Rename("e", "{e}.gate_proj", "expert_halves"), {"e": (2, 3, 4)}, "an even number is needed"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(read, row, shapes, message):
    with pytest.raises(TensorShapeMismatch, match=message):
        read(row, heads=Heads(4, 2), delta=DELTA, **shapes)
