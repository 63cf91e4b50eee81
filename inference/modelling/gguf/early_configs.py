"""config.json from the metadata of files whose decoders are from before Llama: other names, LayerNorms, ALiBi.

As ``configs.py``, one function per architecture. Standard library only.
"""

from __future__ import annotations

from inference.modelling.gguf.config_parts import Config, given, outer, stated_rope
from inference.modelling.gguf.metadata import Metadata


def _early(meta: Metadata, model_type: str, heads: str = "num_attention_heads", **changes: object) -> Config:
    """What they share; ``heads`` is config.json's name of the number of heads."""
    eps = {"layer_norm_epsilon": meta.number("attention.layer_norm_epsilon"), heads: _queries(meta)}
    return outer(meta) | {"model_type": model_type} | given(**eps, **changes)


def _queries(meta: Metadata) -> int | None:
    return max(meta.per_layer("attention.head_count"), default=None)


def falcon(meta: Metadata) -> Config:
    """Falcon; llama.cpp has its mixers side by side, and no ALiBi."""
    return stated_rope(meta) | _early(
        meta,
        "falcon",
        num_kv_heads=max(meta.per_layer("attention.head_count_kv"), default=None),
        new_decoder_architecture=True,
        num_ln_in_parallel_attn=2 if meta.has_tensor("blk.0.attn_norm_2.weight") else 1,
    )


def bloom(meta: Metadata) -> Config:
    """BLOOM."""
    return _early(meta, "bloom", "n_head")


def gpt_neox(meta: Metadata) -> Config:
    """GPT-NeoX and Pythia."""
    found = stated_rope(meta) | _early(
        meta,
        "gpt_neox",
        intermediate_size=max(meta.per_layer("feed_forward_length"), default=None),
        use_parallel_residual=meta.boolean("use_parallel_residual"),
        layer_norm_eps=meta.number("attention.layer_norm_epsilon"),
    )
    found.pop("layer_norm_epsilon", None)
    return found


def gpt2(meta: Metadata) -> Config:
    """GPT-2, as GPT-BigCode with as many heads of keys as of queries, because the converter turned its matrices."""
    return _early(meta, "gpt_bigcode", "n_head", activation_function="gelu_new", multi_query=False)


def starcoder(meta: Metadata) -> Config:
    """StarCoder and SantaCoder."""
    return _early(meta, "gpt_bigcode", "n_head", multi_query=True)


def mpt(meta: Metadata) -> Config:
    """MPT."""
    bias = meta.number("attention.max_alibi_bias") or 0
    attention = given(alibi=bias > 0, alibi_bias_max=bias or None, clip_qkv=meta.number("attention.clamp_kqv") or None)
    return _early(meta, "mpt", "n_heads", attn_config=attention)
