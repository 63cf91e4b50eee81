"""Gemma 4: what config.json may not contradict, and where it states sizes of heads."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.gemma4 import build_spec
from tests.inference.modelling.families.headers import view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "global_head_dim": 8, "sliding_window": 6,
    "intermediate_size": 24, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
}  # fmt: skip


def shapes(count: int = 4, *, inputs: bool = True) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (50, 16), "model.norm.weight": (16,)}
    if inputs:
        found |= {
            "model.embed_tokens_per_layer.weight": (40, 6 * count),
            "model.per_layer_model_projection.weight": (6 * count, 16),
            "model.per_layer_projection_norm.weight": (6,),
        }
    for number in range(count):
        layer, width = f"model.layers.{number}.", 8 if number % 2 else 4
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        found |= {f"{layer}{name}_layernorm.weight": (16,) for name in norms}
        found |= {f"{layer}self_attn.{name}_norm.weight": (width,) for name in "qk"}
        found |= {f"{layer}self_attn.{name}_proj.weight": (2 * width, 16) for name in "kv"}
        found[f"{layer}self_attn.q_proj.weight"] = (4 * width, 16)
        found[f"{layer}self_attn.o_proj.weight"] = (16, 4 * width)
        found |= {f"{layer}mlp.{name}_proj.weight": (24, 16) for name in ("gate", "up")}
        found |= {f"{layer}mlp.down_proj.weight": (16, 24), f"{layer}layer_scalar": (1,)}
        if inputs:
            found[f"{layer}per_layer_input_gate.weight"] = (6, 16)
            found[f"{layer}per_layer_projection.weight"] = (16, 6)
            found[f"{layer}post_per_layer_input_norm.weight"] = (16,)
    return found


def test_layers_differ_in_heads_windows_and_rotations() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    first, second, third, fourth = (layer.token_mixer for layer in spec.layers)
    assert [mixer.head_dim for mixer in (first, second, third, fourth)] == [4, 8, 4, 8]
    assert [mixer.kv_source for mixer in (first, second, third, fourth)] == [None, None, 0, 1]
    assert [mixer.sliding_window for mixer in (first, second)] == [6, None]
    assert (first.rope.theta, first.rope.turning_pairs) == (10000.0, None)
    assert (second.rope.theta, second.rope.rotary_dim, second.rope.turning_pairs) == (1e6, 8, 1)
    assert (first.scale, spec.embedding_multiplier, spec.tie_word_embeddings) == (1.0, 4.0, True)
    assert spec.state_numbers() == (0, 1, 0, 1)
    assert third.state() == () and spec.state_bytes_per_token() == 4 * 2 * 2 * (4 + 8)
    assert (spec.layer_inputs.rows, spec.layer_inputs.width) == (40, 6)


def test_sizes_by_layer_are_those_of_full_layers() -> None:
    by_layer = {str(number): {"head_dim": 8, "num_key_value_heads": 2} for number in (1, 3)}
    assert build_spec(
        view_of(shapes(), CONFIG | {"global_head_dim": None, "per_layer_config": by_layer})
    ) == build_spec(view_of(shapes(), CONFIG))


def test_the_last_layer_is_full_whatever_is_stated() -> None:
    windowed = CONFIG | {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    }
    assert build_spec(view_of(shapes(), windowed)) == build_spec(view_of(shapes(), CONFIG))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"global_head_dim": 16}, "head_dim"),
        ({"head_dim": 8}, "head_dim"),
        ({"per_layer_config": {"1": {"head_dim": 4}}}, "head_dim"),
        ({"per_layer_config": 5}, "per_layer_config"),
        ({"num_attention_heads": 8}, "num_attention_heads"),
        ({"attention_k_eq_v": True}, "attention_k_eq_v"),
        ({"enable_moe_block": True}, "enable_moe_block"),
        ({"use_double_wide_mlp": True}, "intermediate_size"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers"),
        ({"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | change))
    assert caught.value.param == param


def test_inputs_that_are_stated_but_missing_are_refused() -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(inputs=False), CONFIG | {"hidden_size_per_layer_input": 6}))
    assert caught.value.param == "hidden_size_per_layer_input"
