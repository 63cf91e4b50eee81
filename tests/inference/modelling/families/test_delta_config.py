"""Delta rules whose projections are tensors of their own: sizes from the shapes, in each naming."""

from __future__ import annotations

import pytest

from inference.errors import CheckpointError, TensorShapeMismatch
from inference.modelling.families.delta_config import channel_delta_mixer, separate_delta_mixer
from inference.modelling.specs.linear import GatedDeltaSpec, KimiDeltaSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Piece
from tests.inference.modelling.families.headers import HIDDEN, Shapes, view_of

NORM = NormSpec("rms", 1e-5)


def channel_shapes(*, is_low: bool = True, forget: str = "", is_joint: bool = False) -> Shapes:
    convs: Shapes = {"a.conv1d.weight": (24, 1, 4)} if is_joint else {f"a.{n}_conv1d.weight": (8, 1, 4) for n in "qkv"}
    gates: Shapes = {f"a.{forget}f_proj.weight": (8, HIDDEN), "a.g_proj.weight": (8, HIDDEN)}
    if is_low:
        gates = {f"a.{forget}f_a_proj.weight": (3, HIDDEN), f"a.{forget}f_b_proj.weight": (8, 3)}
        gates |= {"a.g_a_proj.weight": (5, HIDDEN), "a.g_b_proj.weight": (8, 5)}
    return {
        **{f"a.{name}_proj.weight": (8, HIDDEN) for name in "qkv"}, **convs, **gates,
        f"a.{forget}dt_bias": (8,), f"a.{forget}A_log": (2,), "a.b_proj.weight": (2, HIDDEN),
        "a.o_norm.weight": (4,), "a.o_proj.weight": (HIDDEN, 8),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "ranks"),
    [
        (channel_shapes(), (3, 5)),
        (channel_shapes(is_low=False), (None, None)),
        (channel_shapes(forget="forget_gate.", is_joint=True), (3, 5)),
    ],
)
def test_gates_have_one_step_or_two(found: Shapes, ranks: tuple[int | None, int | None]) -> None:
    spec, sources = channel_delta_mixer(view_of(found), "a.", 1e-5, -5.0)
    assert spec == KimiDeltaSpec(2, 4, 4, NORM, *ranks, -5.0)
    read = {piece.name for source in sources.values() for piece in source.pieces}
    assert read == found.keys() and sources.keys() == spec.parameter_shapes(HIDDEN).keys()


def test_decays_may_have_more_axes() -> None:
    _, sources = channel_delta_mixer(view_of(channel_shapes() | {"a.A_log": (1, 1, 2, 1)}), "a.", 1e-5, None)
    assert sources["A_log"].pieces == (Piece("a.A_log", reshape=(2,)),)


@pytest.mark.parametrize("key", ["linear_num_heads", "linear_attn_config.head_dim", "short_conv_kernel_size"])
def test_sizes_of_the_config_must_be_those_of_the_shapes(key: str) -> None:
    outer, _, inner = key.partition(".")
    config = {outer: {inner: 3}} if inner else {outer: 3}
    with pytest.raises(CheckpointError, match=key):
        channel_delta_mixer(view_of(channel_shapes(), config), "a.", 1e-5, None)


def separate_shapes() -> Shapes:
    rows = {"q": 6, "k": 6, "v": 16, "g": 16, "a": 4, "b": 4}
    return {
        **{f"a.{name}_proj.weight": (count, HIDDEN) for name, count in rows.items()},
        **{f"a.{name}_conv1d.weight": (rows[name], 1, 4) for name in "qkv"},
        "a.A_log": (4,), "a.dt_bias": (4,), "a.o_norm.weight": (4,), "a.o_proj.weight": (HIDDEN, 16),
    }  # fmt: skip


def test_key_heads_share_values() -> None:
    spec, sources = separate_delta_mixer(view_of(separate_shapes(), {"linear_num_key_heads": 2}), "a.", 1e-5)
    assert spec == GatedDeltaSpec(2, 4, 3, 4, 4, NORM)
    assert sources.keys() == spec.parameter_shapes(HIDDEN).keys()


def test_key_heads_that_divide_nothing_are_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match="3 key heads"):
        separate_delta_mixer(view_of(separate_shapes(), {"linear_num_key_heads": 3}), "a.", 1e-5)
