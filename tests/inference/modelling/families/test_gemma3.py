"""Gemma 3: which layers are windowed, and how each kind is rotated."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.gemma3 import build_spec
from tests.inference.modelling.families.headers import llama, norms, view_of

CONFIG = {"num_attention_heads": 4, "head_dim": 4}


def shapes(count: int = 2) -> dict:
    found = llama(count)
    del found["lm_head.weight"]
    for number in range(count):
        layer = f"model.layers.{number}."
        found |= norms(layer, "pre_feedforward_layernorm", "post_feedforward_layernorm")
        found |= {f"{layer}self_attn.{name}_norm.weight": (4,) for name in "qk"}
    return found


def test_defaults_of_the_family() -> None:
    spec = build_spec(view_of(shapes(12), CONFIG))
    mixers = [layer.token_mixer for layer in spec.layers]
    assert [mixer.sliding_window for mixer in mixers] == ([4096] * 5 + [None]) * 2
    assert [mixer.rope.theta for mixer in mixers[4:6]] == [10000.0, 1000000.0]
    assert (mixers[0].scale, mixers[0].softcap, spec.logits_softcap) == (256.0**-0.5, None, None)
    assert (spec.embedding_multiplier, spec.tie_word_embeddings) == (4.0, True)
    assert mixers[0].qk_norm.offset == spec.final_norm.offset == 1.0


def test_only_full_layers_are_stretched() -> None:
    old = CONFIG | {
        "sliding_window_pattern": 2, "rope_theta": 5e5, "rope_local_base_freq": 300,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip
    new = CONFIG | {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300},
        },
    }
    spec = build_spec(view_of(shapes(), old))
    assert spec == build_spec(view_of(shapes(), new))
    local, full = (layer.token_mixer.rope for layer in spec.layers)
    assert (local.theta, local.scaling) == (300.0, None)
    assert (full.theta, full.scaling.factor) == (5e5, 8.0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"use_bidirectional_attention": True}, UnsupportedArchitecture, "this is an encoder"),
        ({"rope_parameters": 5}, CorruptCheckpoint, "rope_parameters is '5'"),
        ({"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, CorruptCheckpoint, "aren't stretched"),
        ({"rope_local_base_freq": -1}, CorruptCheckpoint, "rope_theta"),
        ({"layer_types": ["full_attention"]}, CorruptCheckpoint, "1 entries for 2 layers"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        build_spec(view_of(shapes(), CONFIG | change))
