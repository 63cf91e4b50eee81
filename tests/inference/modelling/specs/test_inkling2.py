"""Shapes and states of Inkling 2's parts."""

from __future__ import annotations

from dataclasses import replace

from inference.modelling.operations import layer_macs
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.inkling import MixerConvsSpec
from inference.modelling.specs.inkling2 import BlockResidualSpec, BlockStreamsSpec, ClippedAttentionSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec

ATTENTION = ClippedAttentionSpec(4, 2, 6, 0.4, output_gate=True, conv_kernel=3, relative_width=5, extent=9)
THREE = replace(ATTENTION, has_three_inputs=True)


def test_taps_of_full_layers_have_parameters_and_a_state_of_their_own() -> None:
    joint, apart = ATTENTION.parameter_shapes(16), THREE.parameter_shapes(16)
    assert joint["qkv_proj.weight"] == (48, 16) and joint["conv.conv1d.weight"] == (24, 1, 3)
    assert apart["qkv_proj.weight"] == (24, 16) and apart["conv.taps"] == (24, 3)
    assert apart["key_proj.weight"] == apart["value_proj.weight"] == (12, 16)
    assert apart["key_taps_proj.weight"] == apart["value_taps_proj.weight"] == (6, 16)
    assert apart["query_scale"] == (4, 6) and apart["relative_scale"] == (4, 5)
    assert apart["sink_proj.weight"] == (4, 16) and apart["gate_proj.weight"] == (24, 16)
    assert "conv.conv1d.weight" not in apart and "key_proj.weight" not in joint
    states = [[(part.name, part.per, part.shape) for part in one.state()] for one in (ATTENTION, THREE)]
    assert states[0][-1] == ("conv_state", "sequence", (24, 2))
    assert states[1][-1] == ("dynamic_conv_state", "sequence", (24, 2)) and states[0][:2] == states[1][:2]


def test_the_first_layer_has_no_query_of_attention() -> None:
    spec = BlockResidualSpec(NormSpec(), num_inputs=3)
    assert spec.parameter_shapes(16) == {
        "token.norm.weight": (3, 16), "token.query": (3, 16), "channel.norm.weight": (1, 16), "channel.query": (1, 16),
    }  # fmt: skip
    assert "token.query" not in replace(spec, reads_embedding=True).parameter_shapes(16)


def test_products_of_a_token_are_counted() -> None:
    norm = NormSpec()
    experts = MoESpec(4, 2, 8, scoring="sigmoid", correction_bias=True, softcaps=(4.0, 25.0))
    layer = LayerSpec(
        THREE, channel_mixer=experts, mixer_convs=MixerConvsSpec(16, 4), blocks=BlockResidualSpec(norm, num_inputs=3)
    )
    spec = ModelSpec("huggingface", "x", 16, 40, 64, (layer,), norm, streams=BlockStreamsSpec())
    macs = layer_macs(spec, 10)[0]
    # q, k, v, o, gate, sinks, taps, the relative rows, each head's profiles, the router, the streams' queries.
    assert macs.projections == 16 * (48 + 24 + 24 + 4 + 12 + 20) + 4 * 5 * 9 + 4 * 16 + 4 * 16
    assert macs.experts == 2 * 3 * 16 * 8
    assert macs.convolution == 24 * 3 + 2 * 16 * 4
    assert macs.attention == 4 * 10 * 12
    assert spec.parameter_shapes()["streams.query"] == (1, 16)
