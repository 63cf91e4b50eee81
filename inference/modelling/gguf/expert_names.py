"""Tables of tensor names of newer decoders with experts.

As ``names.py``. Standard library only.
"""

from __future__ import annotations

from inference.modelling.gguf.names import (
    COHERE,
    DEEPSEEK2,
    DRAFTS,
    GRANITE_EXPERTS,
    JOINT_EXPERTS,
    LATENT_ATTENTION,
    LAYER_INPUTS,
    MIXTRAL_EXPERT,
    OUTER,
    QWEN,
    SIGMOID_EXPERTS,
    attention,
    both,
    experts,
    latent_attention,
    layer_norms,
    mlp,
    shared_expert,
)
from inference.modelling.gguf.tensors import How, Rename

GPT_OSS = (
    *attention(norms=None),
    Rename("attn_sinks.weight", "self_attn.sinks"),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    *both("ffn_gate_inp", "mlp.router"),
    Rename(("ffn_gate_exps.weight", "ffn_up_exps.weight"), "mlp.experts.gate_up_proj.weight", "take_turns"),
    Rename(("ffn_gate_exps.bias", "ffn_up_exps.bias"), "mlp.experts.gate_up_proj_bias", "take_turns"),
    Rename("ffn_down_exps.weight", "mlp.experts.down_proj.weight"),
    Rename("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
)
KIMI_LINEAR = (
    *LATENT_ATTENTION,
    *(Rename(f"attn_{letter}.weight", f"self_attn.{letter}_proj.weight") for letter in "kv"),
    *(Rename(f"ssm_conv1d_{letter}.weight", f"self_attn.{letter}_conv1d.weight", "conv") for letter in "qkv"),
    *(Rename(f"ssm_{part}.weight", f"self_attn.{part}_proj.weight") for part in ("f_a", "f_b", "g_a", "g_b")),
    Rename("ssm_beta.weight", "self_attn.b_proj.weight"),
    Rename("ssm_a", "self_attn.A_log", "a_log_vector"),
    Rename("ssm_dt.bias", "self_attn.dt_bias"),
    Rename("ssm_norm.weight", "self_attn.o_norm.weight"),
    *mlp(),
    *layer_norms(),
    *experts("block_sparse_moe.", "gate", **MIXTRAL_EXPERT),
    *shared_expert("block_sparse_moe.shared_experts."),
    Rename("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
)
GEMMA4 = (
    *LAYER_INPUTS,
    Rename("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"),
    Rename("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"),
    Rename("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"),
    Rename("ffn_gate_inp.weight", "router.proj.weight"),
    Rename("ffn_gate_inp.scale", "router.scale"),
    Rename("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
    Rename(("ffn_gate_exps.weight", "ffn_up_exps.weight"), "experts.gate_up_proj", "join_experts"),
    Rename("ffn_down_exps.weight", "experts.down_proj"),
    Rename("ffn_down_exps.scale", "router.per_expert_scale"),
    Rename("layer_output_scale.weight", "layer_scalar"),
)
"""Scales beside the router and the last projection are tensors of their own, not factors of NVFP4."""
MIMO2 = (
    *attention(norms=None, is_fusable=False),  # values are narrower than keys
    Rename("attn_sinks.weight", "self_attn.sinks"),
    *mlp(),
    *layer_norms(),
    *SIGMOID_EXPERTS,
    *DRAFTS,
    Rename("layer_output_norm.weight", "final_layernorm.weight"),
)
DBRX_OUTER: dict[str, tuple[str, How]] = {
    "token_embd.weight": ("transformer.wte.weight", ""),
    "output_norm.weight": ("transformer.norm_f.weight", ""),
    "output.weight": ("lm_head.weight", ""),
}
DBRX = (
    Rename("attn_norm.weight", "norm_attn_norm.norm_1.weight"),
    Rename("attn_output_norm.weight", "norm_attn_norm.norm_2.weight"),
    Rename("attn_qkv.weight", "norm_attn_norm.attn.Wqkv.weight"),
    Rename("attn_output.weight", "norm_attn_norm.attn.out_proj.weight"),
    Rename("ffn_gate_inp.weight", "ffn.router.layer.weight"),
    Rename(("ffn_gate_exps.weight", "ffn_up_exps.weight"), "ffn.experts.gate_up_proj", "join_experts"),
    Rename("ffn_down_exps.weight", "ffn.experts.down_proj"),
)
"""The experts as the usual stacks, whose codes can be kept; the checkpoint has theirs below each other."""
DEEPSEEK32 = (
    *DEEPSEEK2,
    Rename("indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"),
    Rename("indexer.attn_k.weight", "self_attn.indexer.wk.weight"),
    Rename("indexer.proj.weight", "self_attn.indexer.weights_proj.weight"),
    *both("indexer.k_norm", "self_attn.indexer.k_norm"),
)
HY_V4_OUTER: dict[str, tuple[str, How]] = {
    **OUTER,
    **{f"output_hc_{leaf}.weight": (f"model.hc_head.hc_{leaf}", "") for leaf in ("fn", "base", "scale")},
}
HY_V4 = (
    *DEEPSEEK32,
    Rename("attn_sinks.weight", "self_attn.sinks"),
    Rename("attn_gate.weight", "self_attn.gate_proj.weight"),
    *(
        Rename(f"hc_{part}_{leaf}.weight", f"{part}_hc.{leaf}")
        for part in ("attn", "ffn")
        for leaf in ("fn", "base", "scale")
    ),
)
COHERE2_MOE = (
    *COHERE,
    *experts("mlp.", "gate"),
    JOINT_EXPERTS,
    *shared_expert("mlp.shared_experts."),
)
MINIMAX_M3 = (
    *attention(norms=None),
    *(Rename(f"attn_{letter}_norm.weight", f"self_attn.{letter}_norm.weight", "norm") for letter in "qk"),
    *(Rename(f"indexer.{letter}_proj.weight", f"self_attn.indexer.{letter}_proj.weight") for letter in "qk"),
    *(Rename(f"indexer.{letter}_norm.weight", f"self_attn.indexer.{letter}_norm.weight", "norm") for letter in "qk"),
    Rename("attn_norm.weight", "input_layernorm.weight", "norm"),
    Rename("ffn_norm.weight", "post_attention_layernorm.weight", "norm"),
    *mlp(),
    *experts("block_sparse_moe.", "gate", **MIXTRAL_EXPERT),
    *shared_expert("block_sparse_moe.shared_experts."),
    Rename("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
)
BAILING_MOE2 = (
    *QWEN,
    *SIGMOID_EXPERTS,
    *DRAFTS,
    Rename("layer_output_norm.weight", "shared_head.norm.weight"),
)
HY_V3 = (
    *QWEN,
    *experts("mlp.", "router.gate"),
    JOINT_EXPERTS,
    *shared_expert("mlp.shared_mlp."),
    Rename("exp_probs_b", "mlp.expert_bias"),
    Rename("exp_probs_b.bias", "mlp.expert_bias"),
    *DRAFTS,
)
LAGUNA = (
    *QWEN,
    Rename("attn_gate.weight", "self_attn.g_proj.weight"),
    *experts("mlp.", "gate"),
    *shared_expert("mlp.shared_expert."),
    Rename("exp_probs_b.bias", "mlp.experts.e_score_correction_bias"),
)
GRANITE_SWA = (
    *attention(rotary=True, norms=None),
    Rename("attn_sinks.weight", "self_attn.sinks"),
    *mlp(),
    *layer_norms(),
    *GRANITE_EXPERTS,
    Rename("ffn_gate_up_exps.weight", "block_sparse_moe.input_linear.weight"),
    Rename("ffn_up_shexp.weight", "shared_mlp.input_linear.weight"),
    Rename("ffn_down_shexp.weight", "shared_mlp.output_linear.weight"),
)
"""Gate and up of the shared MLP are one tensor, as in the checkpoint."""
MINIMAX_01 = (
    *attention(norms=None, is_fusable=False),
    *layer_norms(),
    Rename("attn_qkv.weight", "self_attn.qkv_proj.weight"),
    Rename("attn_gate.weight", "self_attn.output_gate.weight"),
    Rename("attn_norm_2.weight", "self_attn.norm.weight"),
    *experts("block_sparse_moe.", "gate", **MIXTRAL_EXPERT),
)
BAILING_MOE3 = (
    *latent_attention("attention.", output="dense"),
    *(Rename(f"attn_{letter}.weight", f"attention.{letter}_proj.weight") for letter in "kv"),
    *(Rename(f"ssm_conv1d_{letter}.weight", f"attention.{letter}_conv1d.weight", "conv") for letter in "qkv"),
    *(Rename(f"ssm_{letter}_a.weight", f"attention.{letter}_proj.weight") for letter in "fg"),
    Rename("attn_gate.weight", "attention.g_proj.weight"),
    Rename("ssm_beta.weight", "attention.b_proj.weight"),
    Rename("ssm_a", "attention.A_log", "exp_vector"),
    Rename("ssm_dt.bias", "attention.dt_bias"),
    Rename("ssm_norm.weight", "attention.o_norm.weight"),
    *mlp(),
    *layer_norms(),
    *experts("mlp.", "gate"),
    JOINT_EXPERTS,
    *shared_expert("mlp.shared_experts."),
    Rename("exp_probs_b.bias", "mlp.gate.expert_bias"),
    *DRAFTS,
    Rename("layer_output_norm.weight", "shared_head.norm.weight"),
)
"""A delta layer has both gates as one matrix each, an attention layer a gate for each head."""
