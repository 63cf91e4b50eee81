"""Tables of tensor names of decoders from before Llama.

As ``names.py``. Standard library only.
"""

from __future__ import annotations

from inference.modelling.gguf.names import both
from inference.modelling.gguf.tensors import How, Rename


def _early(
    attention: str, output: str, up: str, down: str, *, norms: tuple[str, str] = ("ln_1", "ln_2"), mlp: str = "mlp."
) -> tuple[Rename, ...]:
    """Layers from before Llama, whose queries, keys and values are one tensor."""
    return (
        *both("attn_norm", norms[0]),
        *both("ffn_norm", norms[1]),
        *both("attn_qkv", f"{attention}{{e}}_proj", "fused_qkv"),
        *both("attn_output", attention + output),
        *both("ffn_up", mlp + up),
        *both("ffn_down", mlp + down),
    )


def _early_outer(
    prefix: str = "transformer.", embedding: str = "wte", norm: str = "ln_f", head: str = "lm_head"
) -> dict[str, tuple[str, How]]:
    return {
        "token_embd.weight": (f"{prefix}{embedding}.weight", ""),
        "output_norm.weight": (f"{prefix}{norm}.weight", ""),
        "output_norm.bias": (f"{prefix}{norm}.bias", ""),
        "output.weight": (f"{head}.weight", ""),
    }


_MEGATRON = ("dense", "dense_h_to_4h", "dense_4h_to_h")
_MEGATRON_NORMS = ("input_layernorm", "post_attention_layernorm")
BLOOM = _early("self_attention.", *_MEGATRON, norms=_MEGATRON_NORMS)
BLOOM_OUTER: dict[str, tuple[str, How]] = {
    **_early_outer(embedding="word_embeddings"),
    "token_embd_norm.weight": ("transformer.word_embeddings_layernorm.weight", ""),
    "token_embd_norm.bias": ("transformer.word_embeddings_layernorm.bias", ""),
}
FALCON_OUTER = _early_outer(embedding="word_embeddings")
FALCON = BLOOM
FALCON_TWO_NORMS = (
    *_early("self_attention.", *_MEGATRON, norms=("ln_mlp", "post_attention_layernorm")),
    *both("attn_norm_2", "ln_attn"),
)
"""Of 40B and 180B, in whose files the first norm is the MLP's."""
GPT_NEOX = _early("attention.", *_MEGATRON, norms=_MEGATRON_NORMS)
GPT_NEOX_OUTER = _early_outer("gpt_neox.", "embed_in", "final_layer_norm", "embed_out")
GPT2 = _early("attn.", "c_proj", "c_fc", "c_proj")
GPT2_OUTER: dict[str, tuple[str, How]] = {
    **_early_outer(),
    "position_embd.weight": ("transformer.wpe.weight", ""),
}
MPT = _early("attn.", "out_proj", "up_proj", "down_proj", norms=("norm_1", "norm_2"), mlp="ffn.")
MPT_OUTER = _early_outer(norm="norm_f")
