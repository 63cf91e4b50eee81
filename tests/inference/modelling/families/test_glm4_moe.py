"""GLM 4.5 and its kin: which layers have experts, windows and rotations."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch
from inference.modelling.families.glm4_moe import build_spec
from inference.modelling.specs.layers import AttentionSpec, MLPSpec, MoESpec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, llama, norms, view_of


def shapes(**more: tuple[int, ...]) -> dict:
    """A dense layer, then one with experts."""
    found = llama(1) | attention("model.layers.1.self_attn.") | experts("model.layers.1.mlp.experts.")
    found |= norms("model.layers.1.", "input_layernorm", "post_attention_layernorm")
    return found | {"model.layers.1.mlp.gate.weight": (4, HIDDEN)} | more


CONFIG = {"num_attention_heads": 4, "num_experts_per_tok": 2, "model_type": "glm4_moe"}


def test_layers_have_experts_where_their_router_is() -> None:
    layers = build_spec(view_of(shapes(), CONFIG | {"first_k_dense_replace": 1})).layers
    assert [type(layer.channel_mixer) for layer in layers] == [MLPSpec, MoESpec]
    assert isinstance(layers[0].token_mixer, AttentionSpec) and layers[0].token_mixer.rope is not None
    assert layers[0].token_mixer.rope.rotary_dim == 2


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"first_k_dense_replace": 2}, "first_k_dense_replace"),
        ({"model_type": "dots1", "first_k_dense_replace": 0}, "first_k_dense_replace"),
        ({"model_type": "exaone_moe", "mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types"),
    ],
)
def test_other_dense_layers_than_the_tensors_are_refused(config: dict, key: str) -> None:
    norms_of_heads = {
        f"model.layers.{number}.self_attn.{name}_norm.weight": (4,) for number in range(2) for name in "qk"
    }
    with pytest.raises(TensorShapeMismatch, match=key):
        build_spec(view_of(shapes() | norms_of_heads, CONFIG | config))
