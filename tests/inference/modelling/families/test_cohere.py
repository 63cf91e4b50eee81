"""Command R: the context it is published with, and the form of an MLP and of norms that its files state."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.cohere import CONFIG_KEYS, build_spec
from inference.modelling.families.config_keys import check_config_keys
from tests.inference.modelling.families.headers import attention, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {"num_attention_heads": 4, "logit_scale": 0.25, "tie_word_embeddings": False}


def shapes() -> dict[str, tuple[int, ...]]:
    layer = "model.layers.0."
    return outer() | norms(layer, "input_layernorm") | attention(f"{layer}self_attn.") | mlp(f"{layer}mlp.")


@pytest.mark.parametrize("model_type", CONFIG_KEYS)
def test_the_length_of_the_whole_model_is_the_context(model_type: str) -> None:
    """Command R's ``max_position_embeddings`` is that of an early training; it was served with 8192 positions."""
    stated = CONFIG | {"model_type": model_type, "max_position_embeddings": 8192}
    assert build_spec(view_of(shapes(), stated)).max_position_embeddings == 8192
    assert build_spec(view_of(shapes(), stated | {"model_max_length": 131072})).max_position_embeddings == 131072


@pytest.mark.parametrize(
    "change",
    [
        {"order_of_interleaved_layers": "global_attn_first"}, {"position_embedding_type": "rope_neox"},
        {"rotary_pct": 0.5}, {"use_gated_activation": False}, {"use_parallel_block": False},
        {"use_embedding_sharing": False}, {"use_qk_norm": True},
    ],
    ids=str,
)  # fmt: skip
def test_other_forms_of_a_layer_are_refused_by_key(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        check_config_keys(view_of({}, CONFIG | change), "cohere2", CONFIG_KEYS["cohere2"])
    assert caught.value.param == next(iter(change))
