"""Gemma: the name that its first files give to the tanh approximation."""

from __future__ import annotations

import pytest

from inference.modelling.families.gemma import build_spec
from tests.inference.modelling.families.headers import llama, view_of

CONFIG = {"model_type": "gemma", "num_attention_heads": 4, "head_dim": 4, "tie_word_embeddings": False}


@pytest.mark.parametrize("name", [None, "gelu", "gelu_pytorch_tanh", "gelu_new"])
def test_gelu_means_the_tanh_approximation(name: str | None) -> None:
    spec = build_spec(view_of(llama(), CONFIG | {"hidden_act": name}))
    assert {layer.channel_mixer.activation for layer in spec.layers} == {"gelu_tanh"}


def test_another_activation_is_what_it_says() -> None:
    spec = build_spec(view_of(llama(), CONFIG | {"hidden_act": "relu"}))
    assert spec.layers[0].channel_mixer.activation == "relu"
