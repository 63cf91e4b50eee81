"""Tables of tensor names, as in ``names.py``, of decoders that differ from Llama in names, norms and options.

Standard library only.
"""

from __future__ import annotations

from inference.modelling.gguf.names import (
    MIXTRAL_EXPERT,
    OUTER,
    QWEN,
    attention,
    both,
    experts,
    mlp,
    norms,
    shared_expert,
)
from inference.modelling.gguf.tensors import How, Rename

Outer = dict[str, tuple[str, How]]
BIASED_OUTER: Outer = {**OUTER, "output_norm.bias": ("model.norm.bias", "")}
PHI2_OUTER: Outer = {
    **OUTER,
    "output_norm.weight": ("model.final_layernorm.weight", ""),
    "output_norm.bias": ("model.final_layernorm.bias", ""),
    "output.bias": ("lm_head.bias", ""),
}
NEMOTRON_OUTER: Outer = {**BIASED_OUTER, "output_norm.weight": ("model.norm.weight", "norm")}

_BIASED_NORMS = (*both("attn_norm", "input_layernorm"), *both("ffn_norm", "post_attention_layernorm"))
_POST_NORMS = (
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    Rename("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
)
_FUSED_QKV = both("attn_qkv", "self_attn.{e}_proj", "fused_qkv")
_FUSED_MLP = (*both("ffn_up", "mlp.gate_up_proj"), *both("ffn_down", "mlp.down_proj"))
_PLAIN_MLP = (*both("ffn_up", "mlp.up_proj"), *both("ffn_down", "mlp.down_proj"))
"""Without a gate."""

GEMMA1 = (
    *attention(norms=None),
    *mlp(),
    Rename("attn_norm.weight", "input_layernorm.weight", "norm"),
    Rename("ffn_norm.weight", "post_attention_layernorm.weight", "norm"),
)
PHI2 = (
    *attention(output="dense", norms=None),
    *_FUSED_QKV,
    *both("attn_norm", "input_layernorm"),
    *both("ffn_up", "mlp.fc1"),
    *both("ffn_down", "mlp.fc2"),
)
STARCODER2 = (
    *attention(norms=None),
    *_BIASED_NORMS,
    *both("ffn_up", "mlp.c_fc"),
    *both("ffn_down", "mlp.c_proj"),
)
STABLELM = (
    *attention(norms=None),
    *mlp(),
    *_BIASED_NORMS,
    Rename("attn_q_norm.weight", "self_attn.q_layernorm.norms.{e}.weight", "head_norms"),
    Rename("attn_k_norm.weight", "self_attn.k_layernorm.norms.{e}.weight", "head_norms"),
)
COHERE = (*attention(), *mlp(), Rename("attn_norm.weight", "input_layernorm.weight"))
OLMO = (*attention(rotary=True, norms=None), *mlp())
OLMO2 = (*attention(), *mlp(), *_POST_NORMS)
OLMOE = (*attention(), *norms(), *experts("mlp.", "gate"))
CHATGLM = (*attention(norms=None), *_FUSED_QKV, *norms(), *_FUSED_MLP)
GLM4 = (
    *attention(norms=None),
    *_FUSED_QKV,
    *norms(),
    *_FUSED_MLP,
    Rename("post_attention_norm.weight", "post_self_attn_layernorm.weight"),
    Rename("post_ffw_norm.weight", "post_mlp_layernorm.weight"),
)
_DRAFTS = (
    Rename("nextn.eh_proj.weight", "eh_proj.weight"),
    Rename("nextn.enorm.weight", "enorm.weight"),
    Rename("nextn.hnorm.weight", "hnorm.weight"),
    Rename("nextn.embed_tokens.weight", "embed_tokens.weight"),
    Rename("nextn.shared_head_head.weight", "shared_head.head.weight"),
    Rename("nextn.shared_head_norm.weight", "shared_head.norm.weight"),
)
"""Of a layer that drafts tokens."""
_SIGMOID_EXPERTS = (
    *experts("mlp.", "gate"),
    *shared_expert("mlp.shared_experts."),
    Rename("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
)
GLM4_MOE = (
    *attention(),
    *mlp(),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    *_SIGMOID_EXPERTS,
    *_DRAFTS,
)
DOTS1 = (*QWEN, *_SIGMOID_EXPERTS)
EXAONE_MOE = (*QWEN, *_SIGMOID_EXPERTS, *_DRAFTS)
ERNIE4_5_MOE = (
    *QWEN,
    *experts("mlp.", "gate"),
    *shared_expert("mlp.shared_experts."),
    Rename("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", "row"),
)
_HUNYUAN_ATTENTION = (
    *attention(norms=None),
    Rename("attn_q_norm.weight", "self_attn.query_layernorm.weight"),
    Rename("attn_k_norm.weight", "self_attn.key_layernorm.weight"),
)
HUNYUAN = (*_HUNYUAN_ATTENTION, *mlp(), *norms())
HUNYUAN_MOE = (*_HUNYUAN_ATTENTION, *norms(), *experts("mlp.", "gate.wg"), *shared_expert("mlp.shared_mlp."))
SEED_OSS = (
    *attention(norms=None),
    *mlp(),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
)
NEMOTRON = (
    *attention(norms=None),
    *_PLAIN_MLP,
    Rename("attn_norm.weight", "input_layernorm.weight", "norm"),
    Rename("attn_norm.bias", "input_layernorm.bias"),
    Rename("ffn_norm.weight", "post_attention_layernorm.weight", "norm"),
    Rename("ffn_norm.bias", "post_attention_layernorm.bias"),
)
JAIS2 = (*attention(norms=None), *_PLAIN_MLP, *_BIASED_NORMS)
ARCEE = (*attention(rotary=True, norms=None), *_PLAIN_MLP, *norms())
MINIMAX_M2 = (
    *attention(),
    *norms(),
    *experts("block_sparse_moe.", "gate", **MIXTRAL_EXPERT),
    Rename("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
)
