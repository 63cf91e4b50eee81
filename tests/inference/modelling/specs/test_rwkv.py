"""Specs of RWKV's mixers: what a sequence keeps."""

from __future__ import annotations

from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec


def test_states_are_rows_and_sums() -> None:
    assert [(part.name, part.shape) for part in TimeMixSpec(8, 12).state()] == [
        ("shift_state", (8,)), ("wkv_state", (12,)), ("weight_state", (12,)), ("max_state", (12,)),
    ]  # fmt: skip
    assert [(part.name, part.shape) for part in ChannelMixSpec(8, 20).state()] == [("shift_state", (8,))]
    assert [part.dtype for part in TimeMixSpec(8, 12).state()] == ["state", "state", "float32", "float32"]


def test_shapes_follow_the_widths() -> None:
    shapes = TimeMixSpec(8, 12).parameter_shapes(8)
    assert (shapes["key_proj.weight"], shapes["out_proj.weight"], shapes["decay"]) == ((12, 8), (8, 12), (12,))
    shapes = ChannelMixSpec(8, 20).parameter_shapes(8)
    assert (shapes["up_proj.weight"], shapes["receptance_proj.weight"]) == ((20, 8), (8, 8))
