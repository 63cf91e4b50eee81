"""Dots 3 Note: layers with windows and sizes of their own, by each of the ways in which config.json says it."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint, MissingTensor, TensorShapeMismatch
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from tests.inference.modelling.families.headers import HIDDEN, Shapes, experts, mlp, norms, outer, view_of
from tests.inference.modelling.families.latent import LATENT, QUERY, indexer

TYPE = "dots3_note_text"
KINDS = ["full_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
PUBLISHED: dict[str, Any] = {
    "model_type": TYPE, "num_attention_heads": 2, "num_experts_per_tok": 2, "max_position_embeddings": 64,
    "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "q_lora_rank": QUERY, "kv_lora_rank": LATENT, "layer_types": KINDS,
    "rope_theta": 7e5, "swa_rope_theta": 300.0, "sliding_window_size": 5, "swa_num_attention_heads": 3,
    "swa_q_lora_rank": 4, "swa_kv_lora_rank": 7, "swa_head_dim": 7, "swa_qk_nope_head_dim": 3, "swa_v_head_dim": 2,
    "moe_layer_freq": [0, 1, 1, 1, 1], "moe_shared_expert_intermediate_size": 10, "n_shared_experts": 2,
}  # fmt: skip
"""As published files say it."""
WINDOWED = {"num_attention_heads": 3, "q_lora_rank": 4, "kv_lora_rank": 7, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4}
IN_MEMORY: dict[str, Any] = {
    **{key: value for key, value in PUBLISHED.items() if not key.startswith(("swa_", "moe_", "rope_", "sliding_"))},
    "layer_types": ["indexed_attention", "indexed_attention", *KINDS[2:]], "sliding_window": 5,
    "per_layer_config": {str(number): WINDOWED for number in (2, 3, 4)}, "shared_experts_intermediate_size": 10,
    "mlp_layer_types": ["dense", *["sparse"] * 4],
    "rope_parameters": {
        "indexed_attention": {"rope_type": "default", "rope_theta": 7e5, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
    },
}  # fmt: skip
"""As transformers writes it."""


def attention(base: str, heads: int, query: int, latent: int, widths: tuple[int, int, int]) -> Shapes:
    nope, rope, value = widths
    return {
        f"{base}q_a_proj.weight": (query, HIDDEN),
        f"{base}q_a_layernorm.weight": (query,),
        f"{base}q_b_proj.weight": (heads * (nope + rope), query),
        f"{base}kv_a_proj_with_mqa.weight": (latent + rope, HIDDEN),
        f"{base}kv_a_layernorm.weight": (latent,),
        f"{base}k_rope_only_layernorm.weight": (rope,),
        f"{base}kv_b_proj.weight": (heads * (nope + value), latent),
        f"{base}g_proj.weight": (heads, HIDDEN),
        f"{base}o_proj.weight": (HIDDEN, heads * value),
    }


def shapes(choosing: tuple[int, ...] = (0, 1), count: int = 5) -> Shapes:
    found = outer()
    for number in range(count):
        layer = f"model.layers.{number}."
        base = f"{layer}self_attn."
        is_windowed = number in (2, 3, 4)
        found |= norms(layer)
        found |= attention(base, 3, 4, 7, (3, 4, 2)) if is_windowed else attention(base, 2, QUERY, LATENT, (4, 2, 3))
        found |= indexer(base) if number in choosing else {}
        if number == 0:
            found |= mlp(f"{layer}mlp.")
            continue
        found |= mlp(f"{layer}mlp.shared_experts.", 20) | experts(f"{layer}mlp.experts.")
        found |= {f"{layer}mlp.gate.weight": (4, HIDDEN), f"{layer}mlp.gate.e_score_correction_bias": (4,)}
    return found


def build(found: Shapes | None = None, config: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    values = {key: value for key, value in ((config or PUBLISHED) | changes).items() if value is not None}
    return family_builder(values["model_type"])(view_of(shapes() if found is None else found, values))


def test_windowed_layers_have_sizes_and_a_rotation_of_their_own() -> None:
    mixers = [layer.token_mixer for layer in build().layers]
    assert [mixer.sliding_window for mixer in mixers] == [None, None, 5, 5, 5]
    assert [mixer.indexer is not None for mixer in mixers] == [True, True, False, False, False]
    full, windowed = mixers[0], mixers[2]
    assert (full.num_heads, full.kv_lora_rank, full.qk_rope_head_dim, full.v_head_dim) == (2, LATENT, 2, 3)
    assert (windowed.num_heads, windowed.kv_lora_rank, windowed.qk_rope_head_dim, windowed.v_head_dim) == (3, 7, 4, 2)
    assert (full.rope.theta, full.rope.rotary_dim, full.rope.interleaved) == (7e5, 2, True)
    assert (windowed.rope.theta, windowed.rope.rotary_dim, windowed.rope.interleaved) == (300.0, 4, True)
    assert full.indexer.rope == full.rope
    for mixer, query in ((full, QUERY), (windowed, 4)):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        assert mixer.scale == pytest.approx(width**-0.5 * (HIDDEN / query) ** 0.5)
        assert mixer.latent_multiplier == pytest.approx((HIDDEN / mixer.kv_lora_rank) ** 0.5)
        assert mixer.head_gate and {norm.eps for norm in (mixer.q_a_norm, mixer.kv_a_norm, mixer.k_rope_norm)} == {1e-5}


def test_both_forms_of_config_json_are_the_same_model() -> None:
    assert build(config=IN_MEMORY).layers == build().layers
    whole = {"model_type": "dots3_note", "vision_config": {}, "audio_config": {}, "audio_token_id": 3}
    inner = {name.replace("model.", "model.language_model.", 1): shape for name, shape in shapes().items()}
    beside = {"vision_encoder.norm.weight": (4,), "audio_encoder.audio_adapter.proj.0.weight": (4,)}
    flat = build(inner | beside, PUBLISHED | whole)
    nested = build(inner | beside, whole | {"text_config": PUBLISHED})
    assert flat.layers == nested.layers == build().layers


def test_what_config_json_leaves_out_is_transformers_default() -> None:
    kinds = [layer.token_mixer.sliding_window for layer in build(layer_types=None, sliding_window_size=None).layers]
    assert kinds == [None, None, 512, 512, 512]
    spec = build(rope_theta=None, swa_rope_theta=None, max_position_embeddings=None)
    assert [layer.token_mixer.rope.theta for layer in spec.layers] == [8e7, 8e7, 5e4, 5e4, 5e4]
    assert spec.max_position_embeddings == 524288
    moe = spec.layers[1].channel_mixer
    assert (moe.scoring, moe.num_expert_groups, moe.routed_scaling_factor, moe.shared_intermediate_size) == (
        "sigmoid", 1, 1.0, 20,
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="64 heads"):
        build(swa_num_attention_heads=None)


def test_layers_that_choose_no_keys() -> None:
    full = build(shapes(choosing=()), use_dsa=False)
    assert [layer.token_mixer.indexer for layer in full.layers] == [None] * 5
    stated = {"layer_types": KINDS, "rope_parameters": {"rope_type": "default", "rope_theta": 9e3}}
    spec = build(shapes(choosing=()), IN_MEMORY | stated)
    assert [layer.token_mixer.indexer for layer in spec.layers] == [None] * 5
    assert {layer.token_mixer.rope.theta for layer in spec.layers} == {9e3}
    assert [layer.token_mixer.sliding_window for layer in spec.layers] == [None, None, 5, 5, 5]


def test_scores_have_no_magnitude_of_yarn() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale_all_dim": 1.0}
    for key in ("rope_parameters", "rope_scaling"):
        spec = build(**{key: rope})
        assert [layer.token_mixer.scale for layer in spec.layers] == [
            layer.token_mixer.scale for layer in build().layers
        ]
        assert spec.layers[0].token_mixer.rope.scaling.factor == 4.0
        assert spec.layers[2].token_mixer.rope.theta == 7e5, "one description holds for all layers"


def test_a_layer_that_drafts_is_left_out() -> None:
    spec = build(shapes(choosing=(0, 1, 5), count=6), num_hidden_layers=5, moe_layer_freq=1, first_k_dense_replace=1)
    assert len(spec.layers) == 5 and spec.layers == build().layers


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"swa_kv_lora_rank": 8}, TensorShapeMismatch),
        ({"swa_qk_rope_head_dim": 2}, TensorShapeMismatch),
        ({"swa_v_head_dim": 3}, TensorShapeMismatch),
        ({"q_lora_rank": 4}, TensorShapeMismatch),
        ({"index_n_heads": 4}, TensorShapeMismatch),
        ({"moe_shared_expert_intermediate_size": 20}, TensorShapeMismatch),
        ({"moe_layer_freq": [1, 1, 1, 1, 1], "first_k_dense_replace": 0}, TensorShapeMismatch),
        ({"moe_layer_freq": [0, 1]}, CorruptCheckpoint),
        ({"layer_types": KINDS[:3]}, CorruptCheckpoint),
        ({"per_layer_config": {"2": {"num_attention_heads": 3}}}, CheckpointError),
        ({"per_layer_config": {"2": 3}}, CheckpointError),
        ({"rope_scaling": {"factor": 2.0}, "rope_parameters": {"factor": 2.0}}, CheckpointError),
        ({"rope_parameters": {"indexed_attention": {"rope_theta": 1e4}}}, CorruptCheckpoint),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], error: type[CheckpointError]) -> None:
    with pytest.raises(error):
        build(**changes)


def test_layers_of_one_type_are_alike() -> None:
    odd = {"per_layer_config": {"2": WINDOWED, "3": WINDOWED, "4": WINDOWED | {"num_attention_heads": 2}}}
    with pytest.raises(CheckpointError, match="the same for all windowed layers"):
        build(config=IN_MEMORY | odd)
    whole = {"per_layer_config": {"0": {"num_attention_heads": 3}}, "layer_types": KINDS[:2]}
    with pytest.raises(CheckpointError, match="nothing for the others"):
        build(shapes(count=2), IN_MEMORY | whole | {"mlp_layer_types": None, "num_hidden_layers": None})
    with pytest.raises(CheckpointError, match="nothing for the others"):
        build(config=IN_MEMORY | {"per_layer_config": {str(number): WINDOWED for number in range(5)}})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingTensor, match=r"layers\.1\.self_attn\.indexer"):
        build(shapes(choosing=(0,)))
    with pytest.raises(MissingTensor, match="k_rope_only_layernorm"):
        build({name: shape for name, shape in shapes().items() if "layers.3.self_attn.k_rope" not in name})
