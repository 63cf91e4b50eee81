"""MPT: slopes of heads, sizes that contradict the shapes, and options that aren't served."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, MissingTensor, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.alibi import alibi_slopes
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.families.mpt import CONFIG_KEYS, build_spec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, view_of

CONFIG = {"model_type": "mpt", "n_heads": 4, "n_layers": 1}


def shapes() -> dict:
    layer = {
        "norm_1.weight": (HIDDEN,), "norm_2.weight": (HIDDEN,), "attn.Wqkv.weight": (3 * HIDDEN, HIDDEN),
        "attn.out_proj.weight": (HIDDEN, HIDDEN), "ffn.up_proj.weight": (4 * HIDDEN, HIDDEN),
        "ffn.down_proj.weight": (HIDDEN, 4 * HIDDEN),
    }  # fmt: skip
    found = {f"transformer.blocks.0.{name}": shape for name, shape in layer.items()}
    return found | {"transformer.wte.weight": (VOCAB, HIDDEN), "transformer.norm_f.weight": (HIDDEN,)}


def test_options_of_the_attention_are_read() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"attn_config": {"clip_qkv": 6, "softmax_scale": 0.25}}))
    mixer = spec.layers[0].token_mixer
    assert (mixer.qkv_clip, mixer.scale, mixer.slopes, mixer.rope) == (6, 0.25, alibi_slopes(4), None)
    assert not (mixer.qkv_bias or mixer.o_bias or spec.layers[0].token_norm.has_bias)
    plain = build_spec(view_of(shapes(), CONFIG)).layers[0].token_mixer
    assert (plain.qkv_clip, plain.scale) == (None, (HIDDEN // 4) ** -0.5)
    assert type(spec).from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("stated", "error", "words"),
    [
        ({"d_model": HIDDEN + 1}, TensorShapeMismatch, "d_model"),
        ({"n_layers": 2}, MissingTensor, "says 2 layers"),
        ({"n_heads": 5}, TensorShapeMismatch, "5 attention heads"),
        ({"n_heads": 0}, CorruptCheckpoint, "n_head"),
        ({"attn_config": {"clip_qkv": "much"}}, CorruptCheckpoint, "clip_qkv"),
    ],
)
def test_contradictions_are_refused(stated, error, words) -> None:
    with pytest.raises(error, match=words):
        build_spec(view_of(shapes(), CONFIG | stated))


@pytest.mark.parametrize(
    "stated",
    [
        {"no_bias": False},
        {"logit_scale": "inv_sqrt_d_model"},
        {"expansion_ratio": 2},
        {"norm_type": "low_precision_rmsnorm"},
        {"ffn_config": {"ffn_type": "mptglu"}},
        {"attn_config": {"alibi": False}},
        {"attn_config": {"alibi_bias_max": 4}},
        {"attn_config": {"qk_ln": True}},
        {"attn_config": {"prefix_lm": True}},
        {"attn_config": {"attn_type": "multiquery_attention"}},
        {"attn_config": {"rope": True}},
    ],
    ids=str,
)
def test_what_is_not_served_is_named(stated) -> None:
    view = view_of(shapes(), CONFIG | stated)
    name = next(iter(stated))
    member = next(iter(stated[name])) if isinstance(stated[name], dict) else name
    with pytest.raises(UnsupportedArchitecture, match=member):
        check_config_keys(view, "mpt", CONFIG_KEYS["mpt"])
