"""LFM2: kinds of layers by their tensors, contradictions of config.json."""

from __future__ import annotations

import pytest

from inference.errors import MissingTensor, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.lfm2 import build_spec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.linear import ShortConvSpec
from tests.inference.modelling.families.headers import HIDDEN, WIDTH, norms, outer, view_of

CONFIG = {"num_attention_heads": 4, "num_key_value_heads": 2, "conv_L_cache": 3, "full_attn_idxs": [1]}


def shapes() -> dict:
    found = outer("embedding_norm")
    for layer in ("model.layers.0.", "model.layers.1."):
        found |= norms(layer, "operator_norm", "ffn_norm")
        found |= {f"{layer}feed_forward.{name}.weight": (WIDTH, HIDDEN) for name in ("w1", "w3")}
        found[f"{layer}feed_forward.w2.weight"] = (HIDDEN, WIDTH)
    conv, attention = "model.layers.0.conv.", "model.layers.1.self_attn."
    found |= {f"{conv}in_proj.weight": (3 * HIDDEN, HIDDEN), f"{conv}conv.weight": (HIDDEN, 1, 3)}
    found |= {f"{attention}{name}_proj.weight": (HIDDEN // 2, HIDDEN) for name in "kv"}
    found |= {f"{attention}{name}_layernorm.weight": (4,) for name in "qk"}
    square = (f"{conv}out_proj", f"{attention}q_proj", f"{attention}out_proj")
    return found | {f"{name}.weight": (HIDDEN, HIDDEN) for name in square}


def test_kinds_come_from_the_tensors() -> None:
    view = view_of(shapes(), CONFIG)
    first, second = (layer.token_mixer for layer in build_spec(view).layers)
    assert first == ShortConvSpec(HIDDEN, 3)
    assert isinstance(second, AttentionSpec) and second.qk_norm is not None
    assert second.rope is not None and second.rope.theta == 1e6


@pytest.mark.parametrize("change", [{"full_attn_idxs": [0]}, {"conv_L_cache": 4}, {"layer_types": ["conv", "conv"]}])
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(TensorShapeMismatch, match=next(iter(change))):
        build_spec(view_of(shapes(), CONFIG | change))


def test_the_older_name_of_the_tied_head_counts() -> None:
    without = {name: shape for name, shape in shapes().items() if name != "lm_head.weight"}
    assert build_spec(view_of(without, CONFIG | {"tie_embedding": True})).tie_word_embeddings
    assert not build_spec(view_of(shapes(), CONFIG | {"tie_embedding": False})).tie_word_embeddings
    with pytest.raises(MissingTensor, match="lm_head"):
        build_spec(view_of(without, CONFIG | {"tie_embedding": False}))


def test_a_layer_of_no_kind_is_refused() -> None:
    found = {name: shape for name, shape in shapes().items() if ".1.self_attn." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.1"):
        build_spec(view_of(found, CONFIG))
