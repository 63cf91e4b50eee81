"""The frame of attention decoders: which norms, mixers and sources a layer gets."""

from __future__ import annotations

from inference.modelling.families.attention_decoder import POST_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.mlp_config import MLPNames
from inference.modelling.families.moe_config import moe_sources
from inference.modelling.specs.layers import AttentionSpec, MLPSpec, MoESpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, llama, mlp, norms, outer, view_of

CONFIG = {"num_attention_heads": 4}
NORM = NormSpec()


def test_what_a_family_does_not_mention_is_as_in_llama() -> None:
    decoder = AttentionDecoder.read(view_of(llama(2), CONFIG))
    spec = decoder.spec("x", norm=NORM, ropes=decoder.rope())
    (layer, _) = spec.layers
    assert (layer.token_norm, layer.channel_norm, layer.token_post_norm, layer.is_parallel) == (NORM, NORM, None, False)
    assert layer.channel_mixer == MLPSpec(24)
    assert isinstance(layer.token_mixer, AttentionSpec) and layer.token_mixer.qk_norm is None


def test_other_names_other_norms_and_a_rotation_of_each_layer() -> None:
    shapes = outer("last")
    for number in range(2):
        base = f"model.layers.{number}."
        found = attention(base + "att.")
        found[base + "att.dense.weight"] = found.pop(base + "att.o_proj.weight")
        shapes |= found | norms(base, *POST_NORMS.values())
        shapes |= {base + "ff.a.weight": (24, HIDDEN), base + "ff.b.weight": (HIDDEN, 24)}
    names = LayerNames(
        attention="att.", output="dense", mlp="ff.", mlp_matrices=MLPNames(up="a", down="b"), norms=POST_NORMS,
        final_norm="last",
    )  # fmt: skip
    decoder = AttentionDecoder.read(view_of(shapes, CONFIG), names)
    rope = decoder.rope()
    spec = decoder.spec("x", norm=NORM, ropes=[rope, None], windows=[5, None], gated=False)
    first, second = (layer.token_mixer for layer in spec.layers)
    assert isinstance(first, AttentionSpec) and isinstance(second, AttentionSpec)
    assert (first.rope, first.sliding_window, second.rope, second.sliding_window) == (rope, 5, None, None)
    assert spec.layers[0].token_norm is None and spec.layers[0].token_post_norm == NORM
    assert spec.parameters["layers.0.token_mixer.o_proj.weight"].pieces[0].name == "model.layers.0.att.dense.weight"
    assert spec.parameters["layers.1.channel_mixer.up_proj.weight"].pieces[0].name == "model.layers.1.ff.a.weight"


def test_a_layer_has_experts_if_its_router_is_there() -> None:
    shapes = llama(1) | attention("model.layers.1.self_attn.") | experts("model.layers.1.mlp.experts.")
    shapes |= norms("model.layers.1.", "input_layernorm", "post_attention_layernorm")
    shapes |= {"model.layers.1.mlp.gate.weight": (4, HIDDEN)} | mlp("model.layers.0.mlp.")
    view = view_of(shapes, CONFIG)
    decoder = AttentionDecoder.read(view)
    asked: list[str] = []

    def mixture(layer: str) -> tuple[MoESpec, dict]:
        asked.append(layer)
        spec = MoESpec(4, 2, 8)
        return spec, moe_sources(view, spec, layer + "mlp.")

    spec = decoder.spec("x", norm=NORM, ropes=None, experts=mixture)
    assert asked == ["model.layers.1."]
    assert [type(layer.channel_mixer) for layer in spec.layers] == [MLPSpec, MoESpec]
