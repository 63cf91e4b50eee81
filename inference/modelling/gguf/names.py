"""Tables of tensor names: GGUF's, and those that the checkpoint had, with what has to be undone.

Sources: ``gguf-py/gguf/tensor_mapping.py`` and the converter of https://github.com/ggml-org/llama.cpp. Standard library
only.
"""

from __future__ import annotations

from inference.modelling.gguf.tensors import How, Order, Rename


def both(stored: str, target: str, how: How = "") -> tuple[Rename, ...]:
    """A layer's weight and its bias."""
    return tuple(Rename(f"{stored}.{leaf}", f"{target}.{leaf}", how) for leaf in ("weight", "bias"))


def attention(
    base: str = "self_attn.",
    *,
    rotary: bool = False,
    output: str = "o_proj",
    norms: str | None = "{}_norm",
    is_fusable: bool = True,
) -> tuple[Rename, ...]:
    """Projections, and norms of queries and keys.

    Args:
        rotary: The rotary pairs became neighbours.
        norms: Their names, with the letter as ``{}``; None: there are none.
        is_fusable: The converter may have put queries, keys and values into one tensor, where it was asked for that.
    """
    fused = both("attn_qkv", f"{base}{{e}}_proj", "fused_rotary" if rotary else "fused_qkv")
    return (
        *(fused if is_fusable else ()),
        *both("attn_q", f"{base}q_proj", "rotary" if rotary else ""),
        *both("attn_k", f"{base}k_proj", "rotary_kv" if rotary else ""),
        *both("attn_v", f"{base}v_proj"),
        *both("attn_output", base + output),
        *(Rename(f"attn_{i}_norm.weight", f"{base}{norms.format(i)}.weight") for i in "qk" if norms is not None),
    )


def mlp(base: str = "mlp.") -> tuple[Rename, ...]:
    return (
        *both("ffn_gate", f"{base}gate_proj"),
        *both("ffn_up", f"{base}up_proj"),
        *both("ffn_down", f"{base}down_proj"),
    )


def layer_norms(second: str = "post_attention_layernorm") -> tuple[Rename, ...]:
    return (Rename("attn_norm.weight", "input_layernorm.weight"), Rename("ffn_norm.weight", f"{second}.weight"))


def experts(
    base: str, router: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> tuple[Rename, ...]:
    return (
        Rename("ffn_gate_inp.weight", f"{base}{router}.weight"),
        Rename("ffn_gate_exps.weight", f"{base}experts.{{e}}.{gate}.weight", "experts"),
        Rename("ffn_up_exps.weight", f"{base}experts.{{e}}.{up}.weight", "experts"),
        Rename("ffn_down_exps.weight", f"{base}experts.{{e}}.{down}.weight", "experts"),
    )


JOINT_EXPERTS = Rename("ffn_gate_up_exps.weight", "mlp.experts.{e}.gate_proj.weight", "expert_halves")
"""Gates and ups of all experts in one tensor."""


def shared_expert(base: str) -> tuple[Rename, ...]:
    return (
        Rename("ffn_gate_shexp.weight", f"{base}gate_proj.weight"),
        Rename("ffn_up_shexp.weight", f"{base}up_proj.weight"),
        Rename("ffn_down_shexp.weight", f"{base}down_proj.weight"),
    )


def _mamba(base: str) -> tuple[Rename, ...]:
    """What Mamba-1 and Mamba-2 share."""
    return (
        *both("ssm_in", f"{base}in_proj"),
        *both("ssm_out", f"{base}out_proj"),
        Rename("ssm_conv1d.weight", f"{base}conv1d.weight", "conv"),
        Rename("ssm_conv1d.bias", f"{base}conv1d.bias"),
    )


def _mamba1(base: str) -> tuple[Rename, ...]:
    return (
        *_mamba(base),
        *both("ssm_dt", f"{base}dt_proj"),
        Rename("ssm_x.weight", f"{base}x_proj.weight"),
        Rename("ssm_a", f"{base}A_log", "a_log"),
        Rename("ssm_d", f"{base}D"),
    )


def _mamba2(base: str) -> tuple[Rename, ...]:
    return (
        *_mamba(base),
        Rename("ssm_dt.bias", f"{base}dt_bias"),
        Rename("ssm_a", f"{base}A_log", "a_log_vector"),
        Rename("ssm_d", f"{base}D", "vector"),
        Rename("ssm_norm.weight", f"{base}norm.weight", "vector"),
    )


OUTER: dict[str, tuple[str, How]] = {
    "token_embd.weight": ("model.embed_tokens.weight", ""),
    "output_norm.weight": ("model.norm.weight", ""),
    "output.weight": ("lm_head.weight", ""),
}
LFM2_OUTER: dict[str, tuple[str, How]] = {
    **OUTER,
    "output_norm.weight": ("model.embedding_norm.weight", ""),
    "token_embd_norm.weight": ("model.embedding_norm.weight", ""),  # what llama.cpp calls it
}
GEMMA_OUTER: dict[str, tuple[str, How]] = {**OUTER, "output_norm.weight": ("model.norm.weight", "norm")}
JAMBA_OUTER: dict[str, tuple[str, How]] = {**OUTER, "output_norm.weight": ("model.final_layernorm.weight", "")}
BACKBONE_OUTER: dict[str, tuple[str, How]] = {
    "token_embd.weight": ("backbone.embeddings.weight", ""),
    "output_norm.weight": ("backbone.norm_f.weight", ""),
    "output.weight": ("lm_head.weight", ""),
}
BIASED_OUTER: dict[str, tuple[str, How]] = {**OUTER, "output_norm.bias": ("model.norm.bias", "")}
PHI2_OUTER: dict[str, tuple[str, How]] = {
    **OUTER,
    "output_norm.weight": ("model.final_layernorm.weight", ""),
    "output_norm.bias": ("model.final_layernorm.bias", ""),
    "output.bias": ("lm_head.bias", ""),
}
NEMOTRON_OUTER: dict[str, tuple[str, How]] = {**BIASED_OUTER, "output_norm.weight": ("model.norm.weight", "norm")}

LLAMA = (*attention(rotary=True), *mlp(), *layer_norms())
MIXTRAL_EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}
MIXTRAL = (*attention(rotary=True), *layer_norms(), *experts("block_sparse_moe.", "gate", **MIXTRAL_EXPERT))
QWEN = (*attention(), *mlp(), *layer_norms())
QWEN_EXPERTS = (
    *experts("mlp.", "gate"),
    JOINT_EXPERTS,
    *shared_expert("mlp.shared_expert."),
    Rename("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", "row"),
)
QWEN_MOE = (*QWEN, *QWEN_EXPERTS)
PHI3 = (
    *attention(is_fusable=False),
    *layer_norms(),
    *both("attn_qkv", "self_attn.qkv_proj"),
    *both("ffn_up", "mlp.gate_up_proj"),
    *both("ffn_down", "mlp.down_proj"),
)
GEMMA = (
    *attention(norms=None),
    *mlp(),
    Rename("attn_q_norm.weight", "self_attn.q_norm.weight", "norm"),
    Rename("attn_k_norm.weight", "self_attn.k_norm.weight", "norm"),
    Rename("attn_norm.weight", "input_layernorm.weight", "norm"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight", "norm"),
    Rename("ffn_norm.weight", "pre_feedforward_layernorm.weight", "norm"),
    Rename("post_ffw_norm.weight", "post_feedforward_layernorm.weight", "norm"),
)
LAYER_INPUTS_OUTER: dict[str, tuple[str, How]] = {
    **OUTER,
    "per_layer_token_embd.weight": ("model.embed_tokens_per_layer.weight", ""),
    "per_layer_model_proj.weight": ("model.per_layer_model_projection.weight", ""),
    "per_layer_proj_norm.weight": ("model.per_layer_projection_norm.weight", ""),
}
LAYER_INPUTS = (
    *attention(),
    *mlp(),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    Rename("ffn_norm.weight", "pre_feedforward_layernorm.weight"),
    Rename("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
    Rename("inp_gate.weight", "per_layer_input_gate.weight"),
    Rename("proj.weight", "per_layer_projection.weight"),
    Rename("post_norm.weight", "post_per_layer_input_norm.weight"),
)
"""Of Gemma 3n and Gemma 4: norms around each mixer, and an input of each layer's own."""
GEMMA3N_OUTER: dict[str, tuple[str, How]] = {
    **LAYER_INPUTS_OUTER,
    "altup_proj.weight": ("model.altup_projections.{e}.weight", "experts"),
    "altup_unembd_proj.weight": ("model.altup_unembed_projections.{e}.weight", "experts"),
}
GEMMA3N = (
    *LAYER_INPUTS,
    Rename("altup_correct_coef.weight", "altup.correction_coefs.weight"),
    Rename("altup_correct_scale.weight", "altup.correct_output_scale"),
    Rename("altup_predict_coef.weight", "altup.prediction_coefs.weight"),
    Rename("altup_router.weight", "altup.modality_router.weight"),
    Rename("altup_router_norm.weight", "altup.router_norm.weight"),
    Rename("laurel_l.weight", "laurel.linear_left.weight"),
    Rename("laurel_r.weight", "laurel.linear_right.weight"),
    Rename("laurel_post_norm.weight", "laurel.post_laurel_norm.weight"),
)
LLAMA4 = (
    *attention(norms=None),
    *layer_norms(),
    *mlp("feed_forward."),
    *experts("feed_forward.", "router"),
    *shared_expert("feed_forward.shared_expert."),
)
MAMBA = (*_mamba1("mixer."), Rename("attn_norm.weight", "norm.weight"))
MAMBA2 = (*_mamba2("mixer."), Rename("attn_norm.weight", "norm.weight"))
JAMBA = (
    *attention(),
    *_mamba1("mamba."),
    Rename("ssm_dt_norm.weight", "mamba.dt_layernorm.weight"),
    Rename("ssm_b_norm.weight", "mamba.b_layernorm.weight"),
    Rename("ssm_c_norm.weight", "mamba.c_layernorm.weight"),
    *mlp("feed_forward."),
    *experts("feed_forward.", "router"),
    *layer_norms("pre_ff_layernorm"),
)
GRANITE_EXPERTS = (
    Rename("ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"),
    Rename(("ffn_gate_exps.weight", "ffn_up_exps.weight"), "block_sparse_moe.input_linear.weight", "join_experts"),
    Rename("ffn_down_exps.weight", "block_sparse_moe.output_linear.weight"),
)
GRANITE = (
    *attention(rotary=True),
    *_mamba2("mamba."),
    *layer_norms(),
    Rename(("ffn_gate.weight", "ffn_up.weight"), "shared_mlp.input_linear.weight", "join"),
    Rename("ffn_down.weight", "shared_mlp.output_linear.weight"),
    Rename(("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), "shared_mlp.input_linear.weight", "join"),
    Rename("ffn_down_shexp.weight", "shared_mlp.output_linear.weight"),
    *GRANITE_EXPERTS,
)
FALCON_H1 = (
    *attention(norms=None),
    *_mamba2("mamba."),
    *mlp("feed_forward."),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("ffn_norm", "pre_ff_layernorm.weight"),
)
NEMOTRON_H = (
    *attention("mixer."),
    *_mamba2("mixer."),
    Rename("attn_norm.weight", "norm.weight"),
    *both("ffn_up", "mixer.up_proj"),
    *both("ffn_down", "mixer.down_proj"),
    Rename("ffn_gate_inp.weight", "mixer.gate.weight"),
    Rename("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    Rename("ffn_latent_down.weight", "mixer.fc1_latent_proj.weight"),
    Rename("ffn_latent_up.weight", "mixer.fc2_latent_proj.weight"),
    Rename("ffn_up_exps.weight", "mixer.experts.{e}.up_proj.weight", "experts"),
    Rename("ffn_down_exps.weight", "mixer.experts.{e}.down_proj.weight", "experts"),
    Rename("ffn_up_shexp.weight", "mixer.shared_experts.up_proj.weight"),
    Rename("ffn_down_shexp.weight", "mixer.shared_experts.down_proj.weight"),
)
LFM2 = (
    *attention(output="out_proj", norms="{}_layernorm"),
    Rename("attn_norm.weight", "operator_norm.weight"),
    Rename("ffn_norm.weight", "ffn_norm.weight"),
    Rename("shortconv.conv.weight", "conv.conv.weight", "conv"),
    Rename("shortconv.conv.bias", "conv.conv.bias"),
    *both("shortconv.in_proj", "conv.in_proj"),
    *both("shortconv.out_proj", "conv.out_proj"),
    Rename("ffn_gate.weight", "feed_forward.w1.weight"),
    Rename("ffn_up.weight", "feed_forward.w3.weight"),
    Rename("ffn_down.weight", "feed_forward.w2.weight"),
)
LFM2_MOE = (
    *LFM2,
    *experts("feed_forward.", "gate", gate="w1", up="w3", down="w2"),
    Rename("exp_probs_b.bias", "feed_forward.expert_bias"),
)


def _delta_layers(*, is_reordered: bool) -> tuple[Rename, ...]:
    """Layers of Qwen3-Next and Qwen 3.5; ``is_reordered``: the converter moved the value heads."""

    def row(stored: str, target: str, how: How = "", order: Order = "") -> Rename:
        return Rename(stored, target, how, order if is_reordered else "")

    norms = [
        ("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm"),
    ]  # fmt: skip
    return (
        *attention(norms=None, is_fusable=False),
        *(Rename(f"{stored}.weight", f"{target}.weight", "norm") for stored, target in norms),
        row("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", order="last_rows"),
        row("attn_gate.weight", "linear_attn.in_proj_z.weight", order="rows"),
        row("ssm_conv1d.weight", "linear_attn.conv1d.weight", "conv", "last_rows"),
        row("ssm_a", "linear_attn.A_log", "a_log_vector", "rows"),
        row("ssm_dt.bias", "linear_attn.dt_bias", order="rows"),
        row("ssm_out.weight", "linear_attn.out_proj.weight", order="columns"),
        Rename("ssm_norm.weight", "linear_attn.norm.weight"),
    )


QWEN3_NEXT = (
    *_delta_layers(is_reordered=False),
    *QWEN_EXPERTS,
    Rename("ssm_ba.weight", "linear_attn.in_proj_{e}.weight", "beta_alpha"),
)
QWEN3_NEXT_AS_IT_WAS = (
    *_delta_layers(is_reordered=False),
    *QWEN_EXPERTS,
    Rename("ssm_in.weight", "linear_attn.in_proj_qkvz.weight"),
    Rename("ssm_ba.weight", "linear_attn.in_proj_ba.weight"),
)
"""Of the first files, which hold the projections head by head, as the checkpoint does."""
_QWEN35 = (
    *_delta_layers(is_reordered=True),
    Rename("ssm_beta.weight", "linear_attn.in_proj_b.weight", order="rows"),
    Rename("ssm_alpha.weight", "linear_attn.in_proj_a.weight", order="rows"),
)
QWEN35 = (*_QWEN35, *mlp())
QWEN35_MOE = (*_QWEN35, *QWEN_EXPERTS)
QWEN35_DRAFTS = (
    Rename("nextn.eh_proj.weight", "fc.weight"),
    Rename("nextn.enorm.weight", "pre_fc_norm_embedding.weight", "norm"),
    Rename("nextn.hnorm.weight", "pre_fc_norm_hidden.weight", "norm"),
    Rename("nextn.shared_head_norm.weight", "norm.weight", "norm"),
    Rename("nextn.embed_tokens.weight", "embed_tokens.weight"),
    Rename("nextn.shared_head_head.weight", "lm_head.weight"),
)
"""Outside of the layer that Qwen 3.5 drafts tokens with."""
DRAFTS = (
    Rename("nextn.eh_proj.weight", "eh_proj.weight"),
    Rename("nextn.enorm.weight", "enorm.weight"),
    Rename("nextn.hnorm.weight", "hnorm.weight"),
    Rename("nextn.embed_tokens.weight", "embed_tokens.weight"),
    Rename("nextn.shared_head_head.weight", "shared_head.head.weight"),
    Rename("nextn.shared_head_norm.weight", "shared_head.norm.weight"),
)
"""Of a layer that drafts tokens."""


def latent_attention(base: str = "self_attn.", *, output: str = "o_proj") -> tuple[Rename, ...]:
    return (
        *both("attn_q", f"{base}q_proj"),
        *both("attn_q_a", f"{base}q_a_proj"),
        Rename("attn_q_a_norm.weight", f"{base}q_a_layernorm.weight"),
        *both("attn_q_b", f"{base}q_b_proj"),
        *both("attn_kv_a_mqa", f"{base}kv_a_proj_with_mqa"),
        Rename("attn_kv_a_norm.weight", f"{base}kv_a_layernorm.weight"),
        Rename("attn_kv_b.weight", f"{base}kv_b_proj.weight"),
        Rename(("attn_k_b.weight", "attn_v_b.weight"), f"{base}kv_b_proj.weight", "latent"),
        *both("attn_output", base + output),
    )


LATENT_ATTENTION = latent_attention()
DEEPSEEK2 = (
    *LATENT_ATTENTION,
    *mlp(),
    *layer_norms(),
    *experts("mlp.", "gate"),
    *shared_expert("mlp.shared_experts."),
    Rename("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    *DRAFTS,
)
_BIASED_NORMS = (*both("attn_norm", "input_layernorm"), *both("ffn_norm", "post_attention_layernorm"))
_POST_NORMS = (
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    Rename("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
)
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
OLMOE = (*attention(), *layer_norms(), *experts("mlp.", "gate"))
CHATGLM = (*attention(norms=None), *layer_norms(), *_FUSED_MLP)
GLM4 = (
    *attention(norms=None),
    *layer_norms(),
    *_FUSED_MLP,
    Rename("post_attention_norm.weight", "post_self_attn_layernorm.weight"),
    Rename("post_ffw_norm.weight", "post_mlp_layernorm.weight"),
)
SIGMOID_EXPERTS = (
    *experts("mlp.", "gate"),
    *shared_expert("mlp.shared_experts."),
    Rename("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
)
GLM4_MOE = (
    *attention(),
    *mlp(),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    *SIGMOID_EXPERTS,
    *DRAFTS,
)
DOTS1 = (*QWEN, *SIGMOID_EXPERTS)
EXAONE_MOE = (*QWEN, *SIGMOID_EXPERTS, *DRAFTS)
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
HUNYUAN = (*_HUNYUAN_ATTENTION, *mlp(), *layer_norms())
MAINCODER = (
    *attention(rotary=True, norms=None),
    Rename("attn_q_norm.weight", "self_attn.query_layernorm.weight", "rotary_norm"),
    Rename("attn_k_norm.weight", "self_attn.key_layernorm.weight", "rotary_norm"),
    *mlp(),
    *layer_norms(),
)
"""Norms behind the rotation, whose pairs are neighbours in the model; halves of a head compute the same."""
HUNYUAN_MOE = (*_HUNYUAN_ATTENTION, *layer_norms(), *experts("mlp.", "gate.wg"), *shared_expert("mlp.shared_mlp."))
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
ARCEE = (*attention(rotary=True, norms=None), *_PLAIN_MLP, *layer_norms())
MINIMAX_M2 = (
    *attention(),
    *layer_norms(),
    *experts("block_sparse_moe.", "gate", **MIXTRAL_EXPERT),
    Rename("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
)
PHIMOE = (
    *attention(norms=None),
    *_BIASED_NORMS,
    *experts("block_sparse_moe.", "gate", **MIXTRAL_EXPERT),
)
PHIMOE_OUTER: dict[str, tuple[str, How]] = {**BIASED_OUTER, "output.bias": ("lm_head.bias", "")}
APERTUS = (
    *attention(),
    *_PLAIN_MLP,
    Rename("attn_norm.weight", "attention_layernorm.weight"),
    Rename("ffn_norm.weight", "feedforward_layernorm.weight"),
)
AFMOE = (
    *attention(),
    *mlp(),
    Rename("attn_gate.weight", "self_attn.gate_proj.weight"),
    Rename("attn_norm.weight", "input_layernorm.weight"),
    Rename("post_attention_norm.weight", "post_attention_layernorm.weight"),
    Rename("ffn_norm.weight", "pre_mlp_layernorm.weight"),
    Rename("post_ffw_norm.weight", "post_mlp_layernorm.weight"),
    *experts("mlp.", "router.gate"),
    *shared_expert("mlp.shared_experts."),
    Rename("exp_probs_b.bias", "mlp.expert_bias"),
)
