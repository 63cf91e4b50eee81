"""config.json from the metadata of files whose decoders differ from Llama in names, norms and options.

As ``configs.py``, one function per architecture; those with experts are in ``expert_configs.py``. Where a family takes
another value for granted than llama.cpp, llama.cpp's is stated. Standard library only.
"""

from __future__ import annotations

import math

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.config_parts import (
    Config,
    decoder,
    given,
    granite_multipliers,
    model_layers,
    rope,
    stated_rope,
    width_of_head,
    window_types,
)
from inference.modelling.gguf.metadata import Metadata

EXAONE_32B_LAYERS, EXAONE_32B_WINDOW = 64, 4096
"""EXAONE 4's larger model has windows even if its file doesn't state them."""
BAICHUAN_13B_LAYERS = 40
"""Layers of the Baichuan whose scores fall with the distance (ALiBi); the file doesn't state it."""
MINICPM_EMBEDDING, MINICPM_DEPTH, MINICPM_WIDTH = 12.0, 1.4, 256
"""Factors of the first MiniCPM files, which don't state any: the published models'."""


def plain(meta: Metadata, model_type: str, **changes: object) -> Config:
    """Llama's values with the rotation stated, and ``changes``."""
    return decoder(meta) | stated_rope(meta) | {"model_type": model_type} | given(**changes)


def with_layer_norms(meta: Metadata, model_type: str, key: str = "layer_norm_eps", **changes: object) -> Config:
    """As ``plain``, with LayerNorms, whose eps config.json calls ``key``."""
    found = plain(meta, model_type, **changes)
    found.pop("rms_norm_eps", None)
    return found | given(**{key: meta.number("attention.layer_norm_epsilon")})


def gemma(meta: Metadata) -> Config:
    """Gemma 1."""
    return plain(meta, "gemma", hidden_act="gelu_pytorch_tanh")


def phi2(meta: Metadata) -> Config:
    """Phi-1, Phi-1.5 and Phi-2."""
    return with_layer_norms(meta, "phi", hidden_act="gelu_new")


def starcoder2(meta: Metadata) -> Config:
    """StarCoder 2; llama.cpp has no windows in it."""
    found = with_layer_norms(meta, "starcoder2", "norm_epsilon", hidden_act="gelu_pytorch_tanh")
    return found | {"sliding_window": None}


def stablelm(meta: Metadata) -> Config:
    """StableLM: where the mixers stand side by side there is no second norm."""
    return with_layer_norms(
        meta,
        "stablelm",
        use_parallel_residual=not meta.has_tensor("blk.0.ffn_norm.weight"),
        qk_layernorm=meta.has_tensor("blk.0.attn_q_norm.weight"),
    )


def command_r(meta: Metadata) -> Config:
    """Command R."""
    has_norms = meta.has_tensor("blk.0.attn_q_norm.weight")
    return with_layer_norms(meta, "cohere", use_qk_norm=has_norms, logit_scale=meta.number("logit_scale") or 1.0)


def cohere2(meta: Metadata) -> Config:
    """Command R7B and Command A."""
    found = with_layer_norms(meta, "cohere2", logit_scale=meta.number("logit_scale") or 1.0)
    return found | window_types(meta, meta.integer("attention.sliding_window"))


def olmo(meta: Metadata) -> Config:
    """OLMo, whose norms have no weights; their eps is fixed."""
    found = plain(meta, "olmo", clip_qkv=meta.number("attention.clamp_kqv") or None)
    found.pop("rms_norm_eps", None)
    return found


def olmo2(meta: Metadata) -> Config:
    """OLMo 2, and OLMo 3, which has windows, in whose layers the positions aren't stretched."""
    window = meta.integer("attention.sliding_window")
    if not window:
        return plain(meta, "olmo2")
    changes = {"model_type": "olmo3", "rope_parameters": ropes_by_type(meta)}
    return decoder(meta) | window_types(meta, window) | changes


def ropes_by_type(meta: Metadata) -> Config:
    """The rotation of full layers as it is stated, and of windowed ones, whose positions aren't stretched."""
    full = {"rope_type": "default", **stated_rope(meta)}
    full |= full.pop("rope_scaling", {})
    local = {"rope_type": "default", "rope_theta": meta.number("rope.freq_base_swa") or full["rope_theta"]}
    return {"full_attention": full, "sliding_attention": local}


def glm4(meta: Metadata) -> Config:
    """GLM-4-0414.

    Raises:
        UnsupportedArchitecture: The text model of one that sees pictures, whose rotated pairs the converter moved.
    """
    if meta.parts.keys.get("glm4.rope.dimension_sections") is not None:
        raise UnsupportedArchitecture(
            "the GGUF key glm4.rope.dimension_sections says that positions are triples; GLM models for text are read.",
            param="rope.dimension_sections",
        )
    return plain(meta, "glm4")


def granite(meta: Metadata) -> Config:
    """Granite 3, and the models of Granite 4 without Mamba-2 layers and experts."""
    if meta.boolean("rope.scaling.finetuned") is False:
        raise UnsupportedArchitecture(
            "the GGUF key granite.rope.scaling.finetuned says that attention has no positions; granite is read with "
            "them, granitehybrid without.",
            param="rope.scaling.finetuned",
        )
    return plain(meta, "granite") | granite_multipliers(meta)


def smollm3(meta: Metadata) -> Config:
    """SmolLM3: every fourth layer has no positions, and there are no windows."""
    return plain(meta, "smollm3", no_rope_layer_interval=4, use_sliding_window=False)


def exaone4(meta: Metadata) -> Config:
    """EXAONE 4, and the text model of EXAONE 4.5, which has a layer that drafts."""
    count = model_layers(meta)
    window = meta.integer("attention.sliding_window")
    if window is None and count == EXAONE_32B_LAYERS:
        window = EXAONE_32B_WINDOW
    return plain(meta, "exaone4", num_hidden_layers=count) | window_types(meta, window)


def nemotron(meta: Metadata) -> Config:
    """Nemotron 3 and 4, and Minitron."""
    return with_layer_norms(meta, "nemotron", "norm_eps", hidden_act="relu2")


def jais2(meta: Metadata) -> Config:
    """Jais 2."""
    return with_layer_norms(meta, "jais2", hidden_act="relu2")


def arcee(meta: Metadata) -> Config:
    """AFM."""
    return plain(meta, "arcee", hidden_act="relu2")


def apertus(meta: Metadata) -> Config:
    """Apertus, whose family stretches its positions where no one says that it doesn't."""
    return {"rope_scaling": {"rope_type": "default"}} | plain(meta, "apertus", hidden_act="xielu")


def minicpm(meta: Metadata) -> Config:
    """MiniCPM 1, 2 and 4, which compute as Granite does."""
    layers, hidden = meta.integer("block_count"), meta.integer("embedding_length")
    usual = given(
        embedding_multiplier=MINICPM_EMBEDDING,
        residual_multiplier=MINICPM_DEPTH / math.sqrt(layers) if layers else None,
        logits_scaling=hidden / MINICPM_WIDTH if hidden else None,
    )
    return _in_context(plain(meta, "granite"), meta) | usual | granite_multipliers(meta)


def _in_context(found: Config, meta: Metadata) -> Config:
    """With LongRoPE as MiniCPM's files leave it: nothing is stretched beyond the model's context."""
    stretch = found.get("rope_scaling")
    if stretch is not None and stretch["rope_type"] == "longrope":
        # The trained context and the magnitude aren't stated.
        stretch |= {"attention_factor": 1.0, "original_max_position_embeddings": meta.integer("context_length")}
    return found


def minicpm3(meta: Metadata) -> Config:
    """MiniCPM 3; its factors are the published model's, and so llama.cpp's."""
    found = _in_context(decoder(meta) | rope(meta), meta)
    for key in ("head_dim", "num_key_value_heads", "partial_rotary_factor"):
        found.pop(key, None)  # of the whole head, of which latent attention rotates a part
    return found | given(
        model_type="minicpm3",
        q_lora_rank=meta.integer("attention.q_lora_rank"),
        kv_lora_rank=meta.integer("attention.kv_lora_rank"),
        qk_rope_head_dim=meta.integer("rope.dimension_count"),
        scale_emb=12,
        scale_depth=1.4,
        dim_model_base=256,
    )


def mistral3(meta: Metadata) -> Config:
    """The text models of Mistral Small 3.1 and later ones, and Ministral 3, whose queries grow with the position."""
    slope = meta.number("attention.temperature_scale")
    found = plain(meta, "ministral3" if slope else "mistral") | {"sliding_window": None}
    log_multiplier = meta.number("rope.scaling.yarn_log_multiplier")
    if slope:
        found["rope_scaling"] = found.get("rope_scaling", {"rope_type": "default"}) | given(
            llama_4_scaling_beta=slope,
            original_max_position_embeddings=meta.integer("rope.scaling.original_context_length"),
            mscale=1.0 if log_multiplier else None,
            mscale_all_dim=log_multiplier or None,
        )
    return found


def baichuan(meta: Metadata) -> Config:
    """Baichuan's 7B models, which compute as Llama does.

    Raises:
        UnsupportedArchitecture: The 13B model, whose attention has no positions but a bias.
    """
    if meta.integer("block_count") == BAICHUAN_13B_LAYERS:
        raise UnsupportedArchitecture(
            f"the GGUF key baichuan.block_count is {BAICHUAN_13B_LAYERS}, as in the 13B models, whose scores fall with "
            "the distance (ALiBi); the 7B models are read.",
            param="block_count",
        )
    return plain(meta, "llama")


def qwen1(meta: Metadata) -> Config:
    """The first Qwen, whose stated width is that of gate and up together; llama.cpp doesn't scale its scores."""
    width = max(meta.per_layer("feed_forward_length"), default=0)
    eps = meta.number("attention.layer_norm_rms_epsilon") or meta.number("attention.layer_norm_epsilon")
    return plain(meta, "qwen2", intermediate_size=width // 2 or None, rms_norm_eps=eps)


def orion(meta: Metadata) -> Config:
    """Orion, which computes as a StableLM whose heads are rotated as a whole."""
    return with_layer_norms(meta, "stablelm", use_parallel_residual=False, qk_layernorm=False)


def hunyuan_vl(meta: Metadata) -> Config:
    """The text model of Hunyuan VL and OCR: for text, the positions of a token are one; a factor stretches the base."""
    found, width = plain(meta, "hunyuan_v1_dense"), width_of_head(meta)
    alpha = meta.number("rope.scaling.alpha")
    if alpha and width and width > 2:
        found["rope_theta"] *= alpha ** (width / (width - 2))
    return found
