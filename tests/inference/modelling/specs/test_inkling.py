"""Shapes and states of Inkling's parts."""

from __future__ import annotations

from inference.modelling.operations import layer_macs
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.inkling import MixerConvsSpec, RelativeAttentionSpec, SharedMoESpec
from inference.modelling.specs.parts import NormSpec

ATTENTION = RelativeAttentionSpec(4, 2, 6, 1 / 6, conv_kernel=3, relative_width=5, extent=9)
EXPERTS = SharedMoESpec(4, 2, 8, scoring="sigmoid", correction_bias=True, num_shared_experts=3)


def test_attention_keeps_the_last_inputs_of_one_convolution_of_keys_and_values() -> None:
    shapes = ATTENTION.parameter_shapes(16)
    assert shapes["qkv_proj.weight"] == (48, 16) and shapes["conv.conv1d.weight"] == (24, 1, 3)
    assert shapes["relative_proj.weight"] == (20, 16) and shapes["relative_profiles"] == (5, 9)
    assert [(part.name, part.per, part.shape) for part in ATTENTION.state()] == [
        ("k", "token", (2, 6)), ("v", "token", (2, 6)), ("conv_state", "sequence", (24, 2)),
    ]  # fmt: skip


def test_the_router_scores_shared_experts_that_are_stacked_apart() -> None:
    shapes = EXPERTS.parameter_shapes(16)
    assert shapes["router.weight"] == (7, 16) and shapes["router.correction_bias"] == (4,)
    assert shapes["experts.gate_up_proj"] == (4, 16, 16) and shapes["shared_experts.gate_up_proj"] == (3, 16, 16)
    assert shapes["shared_experts.down_proj"] == (3, 16, 8) and shapes["router.scale"] == (1,)
    assert EXPERTS.num_choices == 4 and EXPERTS.shared_experts.top_k == 3


def test_convolutions_behind_mixers_have_states_of_the_layer() -> None:
    layer = LayerSpec(ATTENTION, NormSpec(), mixer_convs=MixerConvsSpec(16, 4))
    shapes = layer.parameter_shapes(16)
    assert shapes["token_conv.conv1d.weight"] == shapes["channel_conv.conv1d.weight"] == (16, 1, 4)
    assert {part.name: part.shape for part in layer.state() if part.per == "sequence"} == {
        "token_conv_state": (16, 3), "channel_conv_state": (16, 3), "conv_state": (24, 2),
    }  # fmt: skip


def test_products_of_a_token_are_counted() -> None:
    norm = NormSpec()
    layer = LayerSpec(ATTENTION, norm, channel_mixer=EXPERTS, channel_norm=norm, mixer_convs=MixerConvsSpec(16, 4))
    macs = layer_macs(ModelSpec("huggingface", "x", 16, 40, 64, (layer,), norm), 10)[0]
    # q, k, v, o, the relative rows, each head's profiles, the router, three shared experts of 3 matrices.
    assert macs.projections == 16 * (48 + 24 + 20) + 4 * 5 * 9 + 7 * 16 + 3 * 3 * 16 * 8
    assert macs.experts == 2 * 3 * 16 * 8
    assert macs.convolution == 24 * 3 + 2 * 16 * 4
    assert macs.attention == 4 * 10 * 12
