"""Map each ``model_type`` to the family that reads it, imported on first use.

A family is one module in ``inference.modelling.families`` with

    CONFIG_KEYS: Mapping[str, Table]                    the rules of the keys of config.json, by ``model_type``
    def build_spec(view: CheckpointView) -> ModelSpec

A new family is such a module and a row here. Standard library only, and so are the families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import cast

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.spec import ModelSpec

BuildSpec = Callable[[CheckpointView], ModelSpec]


@dataclass(frozen=True, slots=True)
class Family:
    """How checkpoints of a ``model_type`` are read.

    Attributes:
        module: Its name in ``inference.modelling.families``.
        architecture: The class that config.json names under ``architectures``; None: none. Of two types with one
            class, the later row is meant where config.json states no type.
    """

    module: str
    architecture: str | None = None


FAMILIES: dict[str, Family] = {
    "oxidizr": Family("oxidizr"),
    "hy_v3": Family("glm4_moe", "HYV3ForCausalLM"),
    "iquestcoder": Family("llama", "IQuestCoderForCausalLM"),
    "gpt2": Family("gpt2", "GPT2LMHeadModel"),
    "falcon": Family("falcon", "FalconForCausalLM"),
    "bloom": Family("bloom", "BloomForCausalLM"),
    "gptj": Family("gptj", "GPTJForCausalLM"),
    "codegen": Family("gptj", "CodeGenForCausalLM"),
    "gpt_neo": Family("gpt_neo", "GPTNeoForCausalLM"),
    "gpt_bigcode": Family("gpt_bigcode", "GPTBigCodeForCausalLM"),
    "apertus": Family("apertus", "ApertusForCausalLM"),
    "nanochat": Family("nanochat", "NanoChatForCausalLM"),
    "phimoe": Family("phimoe", "PhimoeForCausalLM"),
    "afmoe": Family("afmoe", "AfmoeForCausalLM"),
    "cohere2_moe": Family("cohere2_moe", "Cohere2MoeForCausalLM"),
    "dbrx": Family("dbrx", "DbrxForCausalLM"),
    "flint": Family("flint", "FlintForCausalLM"),
    "kolibri1": Family("kolibri1", "Kolibri1ForCausalLM"),
    "laguna": Family("laguna", "LagunaForCausalLM"),
    "mellum": Family("mellum", "MellumForCausalLM"),
    "gpt_neox": Family("gpt_neox", "GPTNeoXForCausalLM"),
    "mpt": Family("mpt", "MptForCausalLM"),
    "opt": Family("gpt2", "OPTForCausalLM"),
    "persimmon": Family("gpt_neox", "PersimmonForCausalLM"),
    "glm4_moe_lite": Family("deepseek", "Glm4MoeLiteForCausalLM"),
    "granite_swa": Family("granite", "GraniteSWAForCausalLM"),
    "granitemoe_swa": Family("granite", "GraniteMoeSWAForCausalLM"),
    "ministral3": Family("llama", "Ministral3ForCausalLM"),
    "gpt_oss": Family("gpt_oss", "GptOssForCausalLM"),
    "gemma3": Family("gemma3", "Gemma3ForConditionalGeneration"),
    "gemma3n": Family("gemma3n", "Gemma3nForConditionalGeneration"),
    "gemma3n_text": Family("gemma3n", "Gemma3nForCausalLM"),
    "mimo_v2_flash": Family("mimo_v2_flash", "MiMoV2FlashForCausalLM"),
    "longcat_flash": Family("longcat_flash", "LongcatFlashForCausalLM"),
    "minimax_m3_vl": Family("minimax_m3", "MiniMaxM3SparseForConditionalGeneration"),
    "minimax_m3_vl_text": Family("minimax_m3", "MiniMaxM3VLForCausalLM"),
    "llama4": Family("llama4", "Llama4ForConditionalGeneration"),
    "llama4_text": Family("llama4", "Llama4ForCausalLM"),
    "gemma4": Family("gemma4", "Gemma4ForConditionalGeneration"),
    "gemma4_text": Family("gemma4", "Gemma4ForCausalLM"),
    "gemma4_unified": Family("gemma4", "Gemma4UnifiedForConditionalGeneration"),
    "gemma4_unified_text": Family("gemma4", "Gemma4UnifiedForCausalLM"),
    "internlm3": Family("llama", "InternLM3ForCausalLM"),
    "aria": Family("wrapped", "AriaForConditionalGeneration"),
    "aria_text": Family("aria", "AriaTextForCausalLM"),
    "cohere_compass": Family("wrapped", "CohereCompassForConditionalGeneration"),
    "cohere_compass_text": Family("cohere_compass", "CohereCompassForCausalLM"),
    "deepseek_ocr2": Family("deepseek_ocr2", "DeepseekOcr2ForConditionalGeneration"),
    "ernie4_5_vl_moe": Family("ernie4_5_vl_moe", "Ernie4_5_VLMoeForConditionalGeneration"),
    "mistral3": Family("wrapped", "Mistral3ForConditionalGeneration"),
    "mistral4": Family("mistral4", "Mistral4ForCausalLM"),
    "mistral_large4_text": Family("mistral_large4"),
    "mistral_large4": Family("mistral_large4", "MistralLarge4ForConditionalGeneration"),
    "minicpm3": Family("deepseek", "MiniCPM3ForCausalLM"),
    "youtu": Family("deepseek", "YoutuForCausalLM"),
    "dots1": Family("glm4_moe", "Dots1ForCausalLM"),
    "ernie4_5_moe": Family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    "exaone_moe": Family("glm4_moe", "ExaoneMoeForCausalLM"),
    "flex_olmo": Family("olmoe", "FlexOlmoForCausalLM"),
    "glm4_moe": Family("glm4_moe", "Glm4MoeForCausalLM"),
    "granitemoe": Family("granite", "GraniteMoeForCausalLM"),
    "granitemoeshared": Family("granite", "GraniteMoeSharedForCausalLM"),
    "hunyuan_v1_moe": Family("hunyuan", "HunYuanMoEV1ForCausalLM"),
    "minimax_m2": Family("minimax_m2", "MiniMaxM2ForCausalLM"),
    "olmoe": Family("olmoe", "OlmoeForCausalLM"),
    "solar_open": Family("glm4_moe", "SolarOpenForCausalLM"),
    "arcee": Family("nemotron", "ArceeForCausalLM"),
    "cohere": Family("cohere", "CohereForCausalLM"),
    "cohere2": Family("cohere", "Cohere2ForCausalLM"),
    "cwm": Family("llama", "CwmForCausalLM"),
    "ernie4_5": Family("ernie4_5", "Ernie4_5ForCausalLM"),
    "exaone4": Family("exaone4", "Exaone4ForCausalLM"),
    "gemma": Family("gemma", "GemmaForCausalLM"),
    "glm": Family("glm", "GlmForCausalLM"),
    "glm4": Family("glm", "Glm4ForCausalLM"),
    "granite": Family("granite", "GraniteForCausalLM"),
    "helium": Family("llama", "HeliumForCausalLM"),
    "hunyuan_v1_dense": Family("hunyuan", "HunYuanDenseV1ForCausalLM"),
    "hyperclovax": Family("granite", "HyperCLOVAXForCausalLM"),
    "jais2": Family("nemotron", "Jais2ForCausalLM"),
    "ministral": Family("llama", "MinistralForCausalLM"),
    "nemotron": Family("nemotron", "NemotronForCausalLM"),
    "olmo": Family("olmo", "OlmoForCausalLM"),
    "olmo2": Family("olmo", "Olmo2ForCausalLM"),
    "olmo3": Family("olmo", "Olmo3ForCausalLM"),
    "phi": Family("phi", "PhiForCausalLM"),
    "seed_oss": Family("llama", "SeedOssForCausalLM"),
    "smollm3": Family("smollm3", "SmolLM3ForCausalLM"),
    "stablelm": Family("stablelm", "StableLmForCausalLM"),
    "starcoder2": Family("starcoder2", "Starcoder2ForCausalLM"),
    "vaultgemma": Family("gemma", "VaultGemmaForCausalLM"),
    "llama": Family("llama", "LlamaForCausalLM"),
    "mistral": Family("llama", "MistralForCausalLM"),
    "mimo": Family("llama", "MiMoForCausalLM"),
    "qwen2_vl": Family("llama", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": Family("llama", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": Family("llama", "Qwen3VLForConditionalGeneration"),
    "qwen3_vl_moe": Family("qwen_moe", "Qwen3VLMoeForConditionalGeneration"),
    "aya_vision": Family("wrapped", "AyaVisionForConditionalGeneration"),
    "cohere2_vision": Family("wrapped", "Cohere2VisionForConditionalGeneration"),
    "deepseek_vl": Family("wrapped", "DeepseekVLForConditionalGeneration"),
    "deepseek_vl_hybrid": Family("wrapped", "DeepseekVLHybridForConditionalGeneration"),
    "exaone4_5": Family("wrapped", "Exaone4_5_ForConditionalGeneration"),
    "fast_vlm": Family("wrapped", "FastVlmForConditionalGeneration"),
    "fuyu": Family("wrapped", "FuyuForCausalLM"),
    "glm4v": Family("wrapped", "Glm4vForConditionalGeneration"),
    "glm4v_moe": Family("wrapped", "Glm4vMoeForConditionalGeneration"),
    "glm_ocr": Family("wrapped", "GlmOcrForConditionalGeneration"),
    "glmga": Family("wrapped", "Glm46VForConditionalGeneration"),
    "granite4_vision": Family("wrapped", "Granite4VisionForConditionalGeneration"),
    "granite_docling": Family("wrapped", "GraniteDoclingForConditionalGeneration"),
    "granite_speech": Family("wrapped", "GraniteSpeechForConditionalGeneration"),
    "hunyuan_vl": Family("wrapped", "HunYuanVLForConditionalGeneration"),
    "hyperclovax_vision_v2": Family("wrapped", "HyperCLOVAXVisionV2ForConditionalGeneration"),
    "idefics2": Family("wrapped", "Idefics2ForConditionalGeneration"),
    "internvl": Family("wrapped", "InternVLForConditionalGeneration"),
    "internvl_chat": Family("wrapped", "InternVLChatModel"),
    "janus": Family("wrapped", "JanusForConditionalGeneration"),
    "lighton_ocr": Family("wrapped", "LightOnOcrForConditionalGeneration"),
    "llava": Family("wrapped", "LlavaForConditionalGeneration"),
    "llava_next": Family("wrapped", "LlavaNextForConditionalGeneration"),
    "llava_next_video": Family("wrapped", "LlavaNextVideoForConditionalGeneration"),
    "llava_onevision": Family("wrapped", "LlavaOnevisionForConditionalGeneration"),
    "minicpm_ocr": Family("wrapped", "MiniCPMOcrForConditionalGeneration"),
    "minicpmv4_6": Family("wrapped", "MiniCPMV4_6ForConditionalGeneration"),
    "minicpmv4_7": Family("wrapped", "MiniCPMV4_7ForConditionalGeneration"),
    "nemotron_h_omni": Family("wrapped", "NemotronH_Omni_Reasoning_V3"),
    "ovis2": Family("wrapped", "Ovis2ForConditionalGeneration"),
    "paddleocr_vl": Family("wrapped", "PaddleOCRVLForConditionalGeneration"),
    "perception_lm": Family("wrapped", "PerceptionLMForConditionalGeneration"),
    "pp_chart2table": Family("wrapped", "GotOcr2ForConditionalGeneration"),
    "qianfan_ocr": Family("wrapped", "QianfanOCRForConditionalGeneration"),
    "qwen2_5_omni_thinker": Family("wrapped", "Qwen2_5OmniThinkerForConditionalGeneration"),
    "qwen2_audio": Family("wrapped", "Qwen2AudioForConditionalGeneration"),
    "qwen3_omni_moe_thinker": Family("wrapped", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    "video_llama_3": Family("wrapped", "VideoLlama3ForConditionalGeneration"),
    "video_llava": Family("wrapped", "VideoLlavaForConditionalGeneration"),
    "vipllava": Family("wrapped", "VipLlavaForConditionalGeneration"),
    "voxtral": Family("wrapped", "VoxtralForConditionalGeneration"),
    "glm46v": Family("wrapped", "Glm46VForConditionalGeneration"),
    "got_ocr2": Family("wrapped", "GotOcr2ForConditionalGeneration"),
    "llava_llama": Family("wrapped", "LlavaLlamaForCausalLM"),
    "llava_mistral": Family("wrapped", "LlavaMistralForCausalLM"),
    "llava_qwen": Family("wrapped", "LlavaQwenForCausalLM"),
    "qwen2_5_omni": Family("wrapped", "Qwen2_5OmniModel"),
    "qwen3_omni_moe": Family("wrapped", "Qwen3OmniMoeForConditionalGeneration"),
    "mllama": Family("mllama", "MllamaForConditionalGeneration"),
    "smolvlm": Family("llama", "SmolVLMForConditionalGeneration"),
    "idefics3": Family("llama", "Idefics3ForConditionalGeneration"),
    "lfm2_vl": Family("lfm2", "Lfm2VlForConditionalGeneration"),
    "lfm3_vl": Family("lfm3", "Lfm3VlForConditionalGeneration"),
    "qwen2": Family("llama", "Qwen2ForCausalLM"),
    "qwen3": Family("llama", "Qwen3ForCausalLM"),
    "qwen2_moe": Family("qwen_moe", "Qwen2MoeForCausalLM"),
    "qwen3_moe": Family("qwen_moe", "Qwen3MoeForCausalLM"),
    "mixtral": Family("mixtral", "MixtralForCausalLM"),
    "phi3": Family("phi3", "Phi3ForCausalLM"),
    "phi3_v": Family("phi3_v", "Phi3VForCausalLM"),
    "gemma2": Family("gemma2", "Gemma2ForCausalLM"),
    "gemma3_text": Family("gemma3", "Gemma3ForCausalLM"),
    "deepseek_v2": Family("deepseek", "DeepseekV2ForCausalLM"),
    "deepseek_v32": Family("deepseek", "DeepseekV32ForCausalLM"),
    "deepseek_v4": Family("deepseek_v4", "DeepseekV4ForCausalLM"),
    "diffllama": Family("diffllama", "DiffLlamaForCausalLM"),
    "jetmoe": Family("jetmoe", "JetMoeForCausalLM"),
    "biogpt": Family("xglm", "BioGptForCausalLM"),
    "openai-gpt": Family("openai_gpt", "OpenAIGPTLMHeadModel"),
    "xglm": Family("xglm", "XGLMForCausalLM"),
    "bitnet": Family("bitnet", "BitNetForCausalLM"),
    "hy_v4": Family("hy_v4", "HYV4ForCausalLM"),
    "dots3_note_text": Family("dots3", "Dots3NoteForCausalLM"),
    "dots3_note": Family("dots3", "Dots3NoteForConditionalGeneration"),
    "axk1": Family("axk", "AXK1ForCausalLM"),
    "axk2": Family("axk", "AXK2ForCausalLM"),
    "glm5_next_text": Family("glm5_next", "Glm5NextForConditionalGeneration"),
    "glm5_next": Family("glm5_next", "Glm5NextForConditionalGeneration"),
    "glm_moe_dsa": Family("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    "kimi_k2": Family("deepseek", "DeepseekV3ForCausalLM"),
    "kimi_k25": Family("deepseek", "KimiK25ForConditionalGeneration"),
    "kimi_vl": Family("deepseek", "KimiVLForConditionalGeneration"),
    "deepseek_v3": Family("deepseek", "DeepseekV3ForCausalLM"),
    "mamba": Family("mamba", "MambaForCausalLM"),
    "falcon_mamba": Family("mamba", "FalconMambaForCausalLM"),
    "mamba2": Family("mamba2", "Mamba2ForCausalLM"),
    "bamba": Family("bamba", "BambaForCausalLM"),
    "granitemoehybrid": Family("granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "nemotron_h": Family("nemotron_h", "NemotronHForCausalLM"),
    "jamba": Family("jamba", "JambaForCausalLM"),
    "falcon_h1": Family("falcon_h1", "FalconH1ForCausalLM"),
    "olmo_hybrid": Family("olmo_hybrid", "OlmoHybridForCausalLM"),
    "kimi_linear": Family("kimi_linear", "KimiLinearForCausalLM"),
    "bailing_hybrid": Family("kimi_linear", "BailingHybridForCausalLM"),
    "minimax": Family("minimax", "MiniMaxForCausalLM"),
    "inkling_text": Family("inkling", "InklingForCausalLM"),
    "inkling_mm_model": Family("inkling", "InklingForConditionalGeneration"),
    "inkling2_text": Family("inkling2", "Inkling2ForCausalLM"),
    "inkling2": Family("inkling2", "Inkling2ForConditionalGeneration"),
    "step3p5": Family("step3p7", "Step3p5ForCausalLM"),
    "step3p7": Family("step3p7", "Step3p7ForConditionalGeneration"),
    "molmo2_text": Family("molmo2", "Molmo2ForCausalLM"),
    "molmo2": Family("molmo2", "Molmo2ForConditionalGeneration"),
    "muse_glimmer_text": Family("muse_glimmer", "MuseGlimmerForCausalLM"),
    "muse_glimmer": Family("muse_glimmer", "MuseGlimmerForConditionalGeneration"),
    "muse_spark_text": Family("muse_spark", "MuseSparkForCausalLM"),
    "muse_spark": Family("muse_spark", "MuseSparkForConditionalGeneration"),
    "zaya": Family("zaya", "ZayaForCausalLM"),
    "zamba": Family("zamba", "ZambaForCausalLM"),
    "zamba2": Family("zamba2", "Zamba2ForCausalLM"),
    "rwkv": Family("rwkv", "RwkvForCausalLM"),
    "recurrent_gemma": Family("recurrent_gemma", "RecurrentGemmaForCausalLM"),
    "xlstm": Family("xlstm", "xLSTMForCausalLM"),
    "lfm2": Family("lfm2", "Lfm2ForCausalLM"),
    "lfm2_moe": Family("lfm2", "Lfm2MoeForCausalLM"),
    "lfm3": Family("lfm3", "Lfm3ForCausalLM"),
    "qwen3_next": Family("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen3_5": Family("qwen3_next", "Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe": Family("qwen3_next", "Qwen3_5MoeForConditionalGeneration"),
    "qwen3_5_text": Family("qwen3_next", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe_text": Family("qwen3_next", "Qwen3_5MoeForCausalLM"),
    "qwen4_exp": Family("qwen4_exp", "Qwen4ExpForConditionalGeneration"),
    "qwen4_exp_text": Family("qwen4_exp", "Qwen4ExpForCausalLM"),
}
"""By ``model_type``."""
REFUSED: dict[str, str] = {
    "paligemma": "every token of a prompt sees all of it, which a prefill in pieces or from a prefix cache can't do",
}
"""Types whose layers are those of a family, but not what they compute, to the reason."""


def _module(model_type: str) -> ModuleType:
    return import_module(f"inference.modelling.families.{FAMILIES[model_type].module}")


def config_keys(model_type: str) -> Table:
    """The rules of the keys of config.json; a key that isn't among them is refused."""
    return cast("Table", _module(model_type).CONFIG_KEYS[model_type])


def plain_builder(model_type: str) -> BuildSpec:
    """The function that turns a checkpoint into a ``ModelSpec``, for one whose keys are checked already."""
    return cast("BuildSpec", _module(model_type).build_spec)


def family_builder(model_type: str) -> BuildSpec:
    """The function that checks the keys of a checkpoint's config.json and turns it into a ``ModelSpec``.

    Raises:
        UnsupportedArchitecture: No family is registered for it.
    """
    if model_type not in FAMILIES:
        raise UnsupportedArchitecture(
            f"model_type {model_type[:60]!r} is not supported; {len(FAMILIES)} types are (docs/families.md).",
            param="model_type",
        )
    builder = plain_builder(model_type)

    def build_spec(view: CheckpointView) -> ModelSpec:
        check_config_keys(view, model_type, config_keys(model_type))
        return builder(view)

    return build_spec
