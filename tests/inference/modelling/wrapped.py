"""Tiny models that see or hear around a text model of another family, made by transformers."""

from __future__ import annotations

import copy
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from inference.modelling.families.wrapped import TEXT_TYPES
from tests.inference.modelling.test_network_attention import BASE
from tests.inference.modelling.test_network_dense import CASES as DENSE_CASES
from tests.inference.modelling.test_network_dense import VISION, tiny_config
from tests.inference.modelling.test_network_linear import CASES as LINEAR_CASES
from tests.inference.modelling.test_network_recurrent import CASES as RECURRENT_CASES

_SIZES: dict[str, Any] = {
    **VISION, "num_key_value_heads": 2, "depth": 1, "num_heads": 2, "embed_dim": 16, "out_hidden_size": 32,
    "mlp_dim": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "d_model": 16,
    "head_dim": 8, "num_layers": 1, "hidden_dim": 16, "dim_head": 8, "base_channels": 32, "output_channels": 8,
    "num_embeddings": 8, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8, "max_img_size": 32,
    "encoder_hidden_size": 16, "num_mel_bins": 8, "vocab_size": 64, "deepstack_visual_indexes": [0],
    "fullatt_block_indexes": [0], "insert_layer_id": 0, "latent_channels": 8,
}  # fmt: skip
"""Keys of encoders, whatever they are called, and small values for them."""
_SIGLIP = {"model_type": "siglip_vision_model", **VISION}
FURTHER: dict[str, dict[str, Any]] = {
    "cohere2_vision": {"alignment_intermediate_size": 64},
    "fast_vlm": {"vision_config": _SIGLIP},
    "granite4_vision": {
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "1/2",
        "vision_config": {**VISION, "model_type": "clip_vision_model", "hidden_size": 64},
    },
    "ovis2": {"hidden_size": 32, "vocab_size": 99},
    "nemotron_h_omni": {"vision_hidden_size": 16},
    "perception_lm": {"vision_config": {**_SIGLIP, "model_args": {"embed_dim": 16}}},
}
"""Other keys of the whole, by type."""


THREE = {"rope_type": "default", "rope_theta": 1e5, "mrope_section": [1, 1, 2]}
"""Of heads of eight values."""
TEXTS: dict[str, dict[str, Any]] = {
    "glm4v_moe_text": {**DENSE_CASES["glm4_moe-plain"][1], "attention_bias": True, "head_dim": 16, "rope_parameters": {
        **THREE, "partial_rotary_factor": 0.5}},
    "glm4v_text": {"rope_parameters": THREE},
    "glm_ocr_text": {"rope_parameters": {**THREE, "partial_rotary_factor": 0.5}, "head_dim": 16},
    "granite4_vision_text": DENSE_CASES["granite"][1],
    "granite_docling_text": DENSE_CASES["granite"][1],
    "hunyuan_vl_text": {"head_dim": 8, "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0, "mrope_section": [1, 1, 1, 1]}},
    "nemotron_h": RECURRENT_CASES["nemotron_h-dense"][1],
    "paddleocr_vl_text": {"head_dim": 8, "rope_parameters": THREE, "use_bias": True},
    "qwen2_5_omni_text": {"rope_parameters": THREE},
    "qwen3_5_text": LINEAR_CASES["qwen3_5"][1] | {"tie_word_embeddings": False},
    "qwen3_omni_moe_text": {
        "rope_parameters": THREE, "head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
    },
}  # fmt: skip
"""Keys of text models that aren't among the cases of their own types."""


def text_config(model_type: str) -> dict[str, Any]:
    """A tiny text model's config as it stands within another one's."""
    if model_type in DENSE_CASES:
        return tiny_config(*DENSE_CASES[model_type]).to_dict()
    return {"model_type": model_type, **BASE, **TEXTS.get(model_type, {})}


def wrapped_config(model_type: str, text: dict[str, Any] | None = None) -> PretrainedConfig:
    """A tiny config; ``text``: its text model's, instead of the usual type's."""
    text = text_config(TEXT_TYPES[model_type]) if text is None else text
    usual = AutoConfig.for_model(model_type).to_dict()
    parts = {key: _small(value) for key, value in usual.items() if key.endswith("_config") and isinstance(value, dict)}
    values = {**parts, **FURTHER.get(model_type, {}), "text_config": copy.deepcopy(text)}
    return AutoConfig.for_model(model_type, **values, tie_word_embeddings=bool(text.get("tie_word_embeddings")))


def _small(part: dict[str, Any]) -> dict[str, Any]:
    """An encoder's config with few and narrow layers."""
    return {key: _SIZES.get(key, value) for key, value in part.items()}
