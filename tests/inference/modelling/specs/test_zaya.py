"""Shapes and states of ZAYA's mixers."""

from __future__ import annotations

from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.zaya import ConvolvedAttentionSpec, MemoryMoESpec


def test_convolutions_keep_their_last_inputs_beside_keys_and_values() -> None:
    spec = ConvolvedAttentionSpec(4, 2, 6, 1.0, channel_kernel=3, head_kernel=2)
    shapes = spec.parameter_shapes(16)
    assert shapes["qkv_proj.weight"] == (48, 16) and shapes["o_proj.weight"] == (16, 24)
    assert shapes["conv1d.weight"] == (36, 1, 3) and shapes["head_conv.weight"] == (36, 6, 2)
    assert shapes["key_scale"] == (2,)
    assert [(part.name, part.per, part.shape) for part in spec.state()] == [
        ("k", "token", (2, 6)), ("v", "token", (2, 6)), ("conv_state", "sequence", (36, 2)),
        ("head_conv_state", "sequence", (1, 36)), ("delayed_state", "sequence", (6,)),
    ]  # fmt: skip


def test_the_router_has_a_choice_more_than_experts() -> None:
    spec = MemoryMoESpec(4, 1, 8, router_width=6, memory_norm=NormSpec())
    shapes = spec.parameter_shapes(16)
    assert spec.num_choices == 5
    assert shapes["router.out.weight"] == (5, 6) and shapes["router.correction_bias"] == (5,)
    assert shapes["experts.gate_up_proj"] == (4, 16, 16) and "router.weight" not in shapes
    first = MemoryMoESpec(4, 1, 8, router_width=6, reads_memory=False).parameter_shapes(16)
    assert shapes.keys() - first.keys() == {"router.memory_scale"}
