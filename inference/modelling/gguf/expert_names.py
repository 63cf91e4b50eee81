"""Tables of tensor names of newer decoders with experts.

As ``names.py``. Standard library only.
"""

from __future__ import annotations

from inference.modelling.gguf.names import (
    LATENT_ATTENTION,
    MIXTRAL_EXPERT,
    attention,
    both,
    experts,
    layer_norms,
    mlp,
    shared_expert,
)
from inference.modelling.gguf.tensors import Rename

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
