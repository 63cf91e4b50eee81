"""Cohere Compass: rotations, windows and what config.json has to say of them."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import attention, mlp, norms, outer, view_of

ROPE = {"rope_type": "default", "rope_theta": 5e4, "mrope_section": [1, 1, 0]}
CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6,
    "rope_parameters": {"sliding_attention": ROPE, "full_attention": None}, "tie_word_embeddings": False,
}  # fmt: skip


def build(**changes: Any) -> ModelSpec:
    shapes = outer()
    for number in range(2):
        layer = f"model.layers.{number}."
        shapes |= norms(layer, "input_layernorm") | attention(f"{layer}self_attn.") | mlp(f"{layer}mlp.")
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    return family_builder("cohere_compass_text")(view_of(shapes, config))


def test_layers_of_a_type_have_its_rotation_or_none() -> None:
    spec = build(logit_scale=0.5)
    first, second = (layer.token_mixer for layer in spec.layers)
    assert (first.rope.theta, first.rope.interleaved, first.sliding_window) == (5e4, False, 6)
    assert (second.rope, second.sliding_window) == (None, None)
    assert all(layer.is_parallel for layer in spec.layers) and spec.logits_multiplier == 0.5


def test_layers_are_full_and_logits_as_they_are_by_default() -> None:
    spec = build(layer_types=None, rope_parameters={"full_attention": ROPE})
    assert [layer.token_mixer.sliding_window for layer in spec.layers] == [None, None]
    assert spec.layers[0].token_mixer.rope.theta == 5e4 and spec.logits_multiplier == 1.0


def test_a_rotation_that_is_left_over_beside_those_of_the_types_is_not_used() -> None:
    """As in the published file."""
    both = CONFIG["rope_parameters"] | {"rope_theta": 1e6, "rope_type": "default"}
    assert build(rope_parameters=both).layers == build().layers


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_parameters": None}, "for sliding_attention"),
        ({"rope_parameters": ROPE}, "for sliding_attention"),
        ({"rope_parameters": {"sliding_attention": ROPE}}, "for full_attention"),
        ({"rope_parameters": {"sliding_attention": {"x": 1}, "full_attention": None}}, "sliding_attention.x"),
        ({"layer_types": ["sliding_attention", "chunked_attention"]}, "chunked_attention"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"rope_theta": 1e4}, "rope_theta"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        build(**change)
