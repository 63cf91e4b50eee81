"""LLaVA, InternVL and others that see or hear: the text model, of whichever type its own config names.

What stands beside it stays in the files. The three positions of a token that GLM-4V and others rotate by are equal
for text. Logits have their factor (Cohere's, Granite's), which transformers 5 leaves out within some models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, Table, harmless
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.registry import FAMILIES, config_keys, plain_builder
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import ModelSpec

TEXT_TYPES: Mapping[str, str] = {
    "aria": "aria_text", "aya_vision": "cohere2", "cohere2_vision": "cohere2", "cohere_compass": "cohere_compass_text",
    "deepseek_vl": "llama", "deepseek_vl_hybrid": "llama",
    "exaone4_5": "exaone4", "fast_vlm": "qwen2", "fuyu": "persimmon", "glm46v": "glm4v_text", "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text", "glm_ocr": "glm_ocr_text", "glmga": "glm4v_text", "got_ocr2": "qwen2",
    "granite4_vision": "granite4_vision_text", "granite_docling": "granite_docling_text", "granite_speech": "granite",
    "hunyuan_vl": "hunyuan_vl_text", "hyperclovax_vision_v2": "hyperclovax", "idefics2": "mistral",
    "internvl": "qwen2", "internvl_chat": "qwen2", "janus": "llama", "lighton_ocr": "qwen3", "llava": "llama",
    "llava_llama": "llama", "llava_mistral": "mistral", "llava_next": "llama", "llava_next_video": "llama",
    "llava_onevision": "qwen2", "llava_qwen": "qwen2", "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text", "minicpmv4_7": "qwen3_5_text", "mistral3": "mistral",
    "nemotron_h_omni": "nemotron_h", "ovis2": "qwen2", "paddleocr_vl": "paddleocr_vl_text", "perception_lm": "llama",
    "pp_chart2table": "qwen2", "qianfan_ocr": "qwen3",
    "qwen2_5_omni": "qwen2_5_omni_text", "qwen2_5_omni_thinker": "qwen2_5_omni_text", "qwen2_audio": "qwen2",
    "qwen3_omni_moe": "qwen3_omni_moe_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "video_llama_3": "qwen2", "video_llava": "llama", "vipllava": "llama", "voxtral": "llama",
}  # fmt: skip
"""The text model's type by the whole's, where its config doesn't state it."""
ALIKE: Mapping[str, str] = {
    "glm4v_moe_text": "glm4_moe", "glm4v_text": "glm4", "glm_ocr_text": "glm4", "granite4_vision_text": "granite",
    "granite_docling_text": "granite", "hunyuan_vl_text": "hunyuan_v1_dense", "paddleocr_vl_text": "llama",
    "qwen2_5_omni_text": "qwen2", "qwen3_omni_moe_text": "qwen3_moe",
}  # fmt: skip
"""Types that only text models within others have, to the type that computes the same."""
FLAT = ("hunyuan_vl", "llava_llama", "llava_mistral", "llava_qwen", "paddleocr_vl")
"""Types whose published files have the text model's keys beside the others."""
INTERNVL, THINKER = "llm_config", "thinker_config"
"""Where config.json of InternVL's authors has the text model's, and Qwen's Omni models the part that doesn't speak."""
OMNI = ("qwen2_5_omni", "qwen3_omni_moe")
HEADS, CONTEXT, THETA = "num_attention_heads", "max_position_embeddings", "rope_theta"
_GLM: Mapping[str, Any] = {"partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5}
LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "aria_text": {HEADS: 32},
    "cohere2": {HEADS: 64},
    "glm4v_moe_text": {HEADS: 96, CONTEXT: 65536},
    "glm4v_text": {**_GLM, HEADS: 32, CONTEXT: 32768},
    "glm_ocr_text": {**_GLM, HEADS: 16},
    "granite": {HEADS: 32},
    "granite4_vision_text": {HEADS: 32},
    "granite_docling_text": {
        HEADS: 16, CONTEXT: 32768, "rms_norm_eps": 1e-5, "embedding_multiplier": 12.0, "logits_scaling": 4.0,
        "residual_multiplier": 0.263, "attention_multiplier": 0.015625,
    },
    "hyperclovax": {HEADS: 32},
    "llama": {HEADS: 32, CONTEXT: 2048},
    "ministral3": {HEADS: 32, CONTEXT: 262144},
    "mistral": {HEADS: 32, CONTEXT: 131072},
    "mistral4": {HEADS: 32, CONTEXT: 1048576},
    "mixtral": {HEADS: 32, CONTEXT: 131072},
    "paddleocr_vl_text": {HEADS: 16, CONTEXT: 131072, "rms_norm_eps": 1e-5, THETA: 5e5},
    "persimmon": {HEADS: 64},
    "phi3": {HEADS: 32},
    "qwen2": {HEADS: 32, CONTEXT: 32768},
    "qwen2_5_omni_text": {HEADS: 28, CONTEXT: 32768, THETA: 1e6},
    "qwen3": {CONTEXT: 32768},
    "qwen3_5_text": {"linear_num_key_heads": 16},
    "qwen3_moe": {CONTEXT: 32768},
    "qwen3_omni_moe_text": {CONTEXT: 32768, THETA: 1e6},
}  # fmt: skip
"""transformers' defaults that can't be seen in the tensors: files of LLaVA hold only what differs from them."""


def _keys_of(model_type: str) -> Table:
    """The rules of a text model's keys.

    Raises:
        UnsupportedArchitecture: There is no family for it.
    """
    model_type = ALIKE.get(model_type, model_type)
    if model_type not in FAMILIES or model_type in TEXT_TYPES:
        raise UnsupportedArchitecture(
            f"config.json: the text model's type {model_type[:60]!r} is not supported (docs/families.md).",
            param="text_config.model_type",
        )
    return config_keys(model_type)


def _around(text_type: str) -> Table:
    return {**around({}), "text_config": Members(_keys_of(text_type), _keys_of)}


CONFIG_KEYS: Mapping[str, Table] = {
    **{whole: _around(text) for whole, text in TEXT_TYPES.items()},
    **{whole: {**_keys_of(TEXT_TYPES[whole]), **_around(TEXT_TYPES[whole])} for whole in FLAT},
    **{
        whole: {
            **COMMON,
            THINKER: Members(_around(TEXT_TYPES[whole])),
            **harmless(
                "nothing is spoken", "talker_config", "token2wav_config", "code2wav_config", "enable_audio_output",
                "enable_talker", "im_start_token_id", "im_end_token_id", "tts_pad_token_id", "tts_bos_token_id",
                "tts_eos_token_id", "system_token_id", "user_token_id", "assistant_token_id",
            ),
        }
        for whole in OMNI
    },
    "internvl_chat": {
        **around({}),
        **harmless(
            "pictures aren't read", "dynamic_image_size", "max_dynamic_patch", "min_dynamic_patch", "pad2square",
            "ps_version", "select_layer", "use_thumbnail",
        ),
        "template": Harmless("the tokeniser's files have the template of chats"),
        **dict.fromkeys(("use_backbone_lora", "use_llm_lora"), Only((0,), "the weights are whole matrices")),
        INTERNVL: Members(_keys_of("qwen2"), _keys_of),
    },
}  # fmt: skip


def build_spec(view: CheckpointView) -> ModelSpec:
    whole = text_part(view, key=THINKER) if THINKER in view.config else view
    text = text_part(whole, key=INTERNVL if INTERNVL in whole.config else "text_config")
    stated = text.config.string("model_type", default=view.config.string("model_type"))
    stated = TEXT_TYPES.get(stated, stated)
    model_type = ALIKE.get(stated, stated)
    values = {**LEFT_OUT.get(stated, {}), **text.config.values, "model_type": model_type}
    return plain_builder(model_type)(text.with_config(values))
