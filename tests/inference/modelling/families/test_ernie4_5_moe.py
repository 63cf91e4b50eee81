"""ERNIE 4.5 with experts: the layers that config.json gives experts."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.ernie4_5_moe import build_spec
from inference.modelling.specs.layers import MoESpec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, llama, norms, view_of


def shapes(**more: tuple[int, ...]) -> dict:
    """A dense layer, then one with experts."""
    found = llama(1) | attention("model.layers.1.self_attn.") | experts("model.layers.1.mlp.experts.")
    found |= norms("model.layers.1.", "input_layernorm", "post_attention_layernorm")
    return found | {"model.layers.1.mlp.gate.weight": (4, HIDDEN)} | more


CONFIG = {"num_attention_heads": 4, "moe_k": 2}


def test_the_bias_for_choosing_is_a_row_of_the_files() -> None:
    view = view_of(shapes() | {"model.layers.1.mlp.moe_statics.e_score_correction_bias": (1, 4)}, CONFIG)
    spec = build_spec(view)
    mixer = spec.layers[1].channel_mixer
    assert isinstance(mixer, MoESpec) and mixer.correction_bias and mixer.scoring == "softmax"
    (piece,) = spec.parameters["layers.1.channel_mixer.router.correction_bias"].pieces
    assert piece.reshape == (4,)


@pytest.mark.parametrize(
    ("stated", "fits"),
    [
        ({"moe_layer_start_index": 1}, True),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, True),
        ({"moe_layer_start_index": 0, "moe_layer_interval": 2}, True),
        ({"moe_layer_start_index": 0}, False),
        ({"moe_layer_start_index": 0, "moe_layer_end_index": 0}, False),
    ],
)
def test_the_stated_layers_have_to_be_those_with_a_router(stated: dict, fits: bool) -> None:
    view = view_of(shapes(), CONFIG | stated)
    if fits:
        assert isinstance(build_spec(view).layers[1].channel_mixer, MoESpec)
        return
    with pytest.raises(TensorShapeMismatch, match="moe_layer_start_index"):
        build_spec(view)
