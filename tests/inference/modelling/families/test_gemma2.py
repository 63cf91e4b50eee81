"""Gemma 2: four norms, softcaps, windows, and encoders that are refused."""

from __future__ import annotations

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.gemma2 import build_spec
from tests.inference.modelling.families.headers import llama, norms, view_of

CONFIG = {"num_attention_heads": 4, "head_dim": 4}


def shapes() -> dict:
    found = llama(2)
    del found["lm_head.weight"]
    for number in range(2):
        found |= norms(f"model.layers.{number}.", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return found


def test_defaults_of_the_family() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    first, second = spec.layers
    assert (first.token_mixer.sliding_window, second.token_mixer.sliding_window) == (4096, None)
    assert (first.token_mixer.softcap, spec.logits_softcap) == (50.0, 30.0)
    assert first.token_mixer.scale == 256.0**-0.5
    assert (spec.embedding_multiplier, spec.tie_word_embeddings) == (4.0, True)
    assert first.token_norm.offset == first.channel_post_norm.offset == 1.0


def test_null_switches_a_softcap_off() -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"attn_logit_softcapping": None, "final_logit_softcapping": 9.0}))
    assert (spec.layers[0].token_mixer.softcap, spec.logits_softcap) == (None, 9.0)


def test_encoders_are_refused() -> None:
    with pytest.raises(UnsupportedArchitecture, match="this is an encoder"):
        build_spec(view_of(shapes(), CONFIG | {"use_bidirectional_attention": True}))
