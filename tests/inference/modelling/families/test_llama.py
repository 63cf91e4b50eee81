"""Llama and its relatives: norms of q and k, biases, sliding windows."""

from __future__ import annotations

import copy

import pytest
from transformers import AutoConfig

from inference.errors import MissingTensor, UnsupportedArchitecture
from inference.modelling.families.llama import build_spec
from tests.inference.modelling.families.headers import llama, view_of

HEADS = {"num_attention_heads": 4}


def test_a_llama_without_windows_biases_or_inner_norms() -> None:
    view = view_of(llama(), HEADS)
    spec = build_spec(view)
    mixer = spec.layers[0].token_mixer
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) == (4, 2, 4)
    assert mixer.scale == 0.5
    assert (mixer.qkv_bias, mixer.qk_norm, mixer.sliding_window) == (False, None, None)
    assert spec.layers[0].channel_mixer.intermediate_size == 24
    assert spec.model_type == "llama"
    assert view.facts.warnings == []


@pytest.mark.parametrize("beside", [{}, {"original_max_position_embeddings": 16}])
def test_queries_grow_behind_the_trained_context_among_the_rope_keys(beside: dict) -> None:
    """One at the top level doesn't count, as in transformers."""
    rope = {"rope_type": "yarn", "factor": 2.0, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 32}
    config = {"rope_parameters": rope, "max_position_embeddings": 64} | beside
    theirs = AutoConfig.for_model("ministral3", **copy.deepcopy(config)).rope_parameters
    mixer = build_spec(view_of(llama(1), HEADS | {"model_type": "ministral3"} | config)).layers[0].token_mixer
    assert mixer.query_growth == (0.5, theirs["original_max_position_embeddings"]) == (0.5, 32)
    assert mixer.rope.scaling.original_max_position_embeddings == 32


def test_queries_grow_by_rope_scaling_where_rope_parameters_stands_beside_it() -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    config = {"rope_scaling": rope | {"llama_4_scaling_beta": 0.5}, "rope_parameters": rope}
    assert AutoConfig.for_model("ministral3", **copy.deepcopy(config)).rope_parameters["llama_4_scaling_beta"] == 0.5
    mixer = build_spec(view_of(llama(1), HEADS | {"model_type": "ministral3"} | config)).layers[0].token_mixer
    assert mixer.query_growth == (0.5, 32)


def test_the_rotation_of_ministral_3_is_transformers_default_where_none_is_described() -> None:
    mixer = build_spec(view_of(llama(1), HEADS | {"model_type": "ministral3"})).layers[0].token_mixer
    assert mixer.query_growth == (0.1, 16384)
    assert (mixer.rope.theta, mixer.rope.scaling.factor) == (1e6, 16.0)
    for stated, theta in (({"rope_theta": 5e5}, 5e5), ({"rope_parameters": {"rope_type": "default"}}, 1e4)):
        view = view_of(llama(1), HEADS | {"model_type": "ministral3"} | stated)
        assert build_spec(view).layers[0].token_mixer.rope.theta == theta


def test_norms_of_q_and_k_and_biases_are_read_where_their_tensors_are() -> None:
    shapes = llama(1)
    base = "model.layers.0.self_attn."
    shapes |= {f"{base}q_norm.weight": (4,), f"{base}k_norm.weight": (4,)}
    shapes |= {f"{base}q_proj.bias": (16,), f"{base}k_proj.bias": (8,), f"{base}v_proj.bias": (8,)}
    mixer = build_spec(view_of(shapes, {"model_type": "qwen3"})).layers[0].token_mixer
    assert mixer.qk_norm is not None
    assert mixer.qkv_bias and not mixer.o_bias


def test_qwen3_has_norms_of_q_and_k_and_no_other_type() -> None:
    with pytest.raises(MissingTensor, match="q_norm"):
        build_spec(view_of(llama(1), HEADS | {"model_type": "qwen3"}))
    shapes = llama(1) | {f"model.layers.0.self_attn.{name}_norm.weight": (4,) for name in "qk"}
    with pytest.raises(UnsupportedArchitecture, match=r"no place in qwen2: .*k_norm"):
        build_spec(view_of(shapes, HEADS | {"model_type": "qwen2"}))


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 7}, (7, 7)),
        ({"model_type": "mistral"}, (4096, 4096)),
        ({"model_type": "ministral", "sliding_window": 7}, (7, 7)),
        ({"model_type": "cwm", "sliding_window": 7}, (None, 7)),
        ({"model_type": "llama", "sliding_window": 7}, (None, None)),
        ({"model_type": "qwen2", "sliding_window": 7}, (None, None)),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}, (None, 7)),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (7, None),
        ),
    ],
)
def test_windows_by_model_type(config: dict, windows: tuple) -> None:
    shapes = llama()
    if config["model_type"] == "qwen3":
        norms = (f"model.layers.{number}.self_attn.{name}_norm.weight" for number in range(2) for name in "qk")
        shapes |= dict.fromkeys(norms, (4,))
    spec = build_spec(view_of(shapes, HEADS | config))
    assert tuple(layer.token_mixer.sliding_window for layer in spec.layers) == windows
