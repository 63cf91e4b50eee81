"""DBRX: queries, keys and values cut at a bound, norms without biases, experts one below the other in one matrix.

Source: https://www.databricks.com/blog/introducing-dbrx-new-state-art-open-llm, and transformers' ``dbrx``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_config import Fused
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.config_values import check_size, integer_with_evidence
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.moe_config import check_experts, check_routing, count_experts, expert_sources
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Piece, Source, tensor

NAMES = LayerNames(
    attention="norm_attn_norm.attn.",
    output="out_proj",
    fused=Fused("Wqkv"),
    norms={"token_norm": "norm_attn_norm.norm_1", "channel_norm": "norm_attn_norm.norm_2"},
    final_norm="norm_f",
)
SUB_CONFIG: Table = {
    **{key: rule for key, rule in COMMON.items() if isinstance(rule, Harmless | Only)},
    **harmless("transformers' own members of any config", "model_type", "_name_or_path", "architectures"),
    **harmless("transformers' own members of any config", "bos_token_id", "eos_token_id", "tie_word_embeddings"),
}
CONFIG_KEYS: Mapping[str, Table] = {
    "dbrx": {
        **COMMON,
        **ROPE,
        **used("d_model", "n_heads", "n_layers"),
        **harmless("training only", "emb_pdrop"),
        **harmless("attn_config says it", "num_key_value_heads"),
        "attn_config": Members({**SUB_CONFIG, **used("clip_qkv", "kv_n_heads", "rope_theta")}),
        "ffn_config": Members(
            {
                **SUB_CONFIG,
                **used("hidden_size", "ffn_hidden_size", "moe_num_experts", "moe_top_k"),
                **harmless("training only", "moe_jitter_eps", "moe_loss_weight", "uniform_expert_assignment"),
                "ffn_act_fn": Members({"name": Only(("silu",), "experts have SwiGLU")}),
                "moe_normalize_expert_weights": Only((1,), "chosen scores are divided by their sum, or not (null)"),
            }
        ),
    }
}


def build_spec(view: CheckpointView) -> ModelSpec:
    config = view.config
    decoder = AttentionDecoder.read(
        view,
        NAMES,
        prefixes=("transformer.", ""),
        embeddings=("wte.weight",),
        layers="blocks.",
        default_max_position_embeddings=2048,
        fused_kv_heads=config.integer("attn_config.kv_n_heads", default=1),
    )
    check_size(view, decoder.layout.hidden_size, f"columns of {decoder.layout.embedding}", "d_model")
    clip = config.number("attn_config.clip_qkv", default=0.0, low=0.0, high=1e9)
    theta = config.number("attn_config.rope_theta", default=10_000.0, low=1.001, high=1e15)
    return decoder.spec(
        "dbrx",
        norm=NormSpec("layer", 1e-5, has_bias=False),
        ropes=decoder.rope(default_theta=theta),
        attention_options={"qkv_clip": clip or None},
        act="silu",
        experts=lambda layer: _experts(view, f"{layer}ffn."),
        router="",
    )


def _experts(view: CheckpointView, base: str) -> ChannelMixer:
    """The experts, each of which has as many rows of three matrices; the last one is stored inputs first."""
    count = matrix_shape(view.tensors, f"{base}router.layer.weight")[0]
    matrices, is_stacked = f"{base}experts.mlp.", f"{base}experts.down_proj" in view.tensors
    width = (
        count_experts(view, f"{base}experts.")[1]
        if is_stacked
        else matrix_shape(view.tensors, f"{matrices}w1")[0] // count
    )
    check_experts(view, matrices, count, width, ("ffn_config.moe_num_experts",), "ffn_config.ffn_hidden_size")
    # null means that the chosen scores stay as they are.
    stated = view.config.get("ffn_config")
    normalises = not isinstance(stated, Mapping) or stated.get("moe_normalize_expert_weights", 1) is not None
    top_k = integer_with_evidence(view, "moe.top_k", ("ffn_config.moe_top_k",), 1)
    spec = check_routing(MoESpec(count, top_k, width, normalise_top_k=normalises))
    router = {"router.weight": tensor(f"{base}router.layer.weight")}
    if is_stacked:  # converted to GGUF and back
        return spec, router | expert_sources(view, f"{base}experts.", count)
    rows = tuple(Piece(matrices + name, parts=count, index=-1) for name in ("w1", "v1"))
    return spec, router | {
        "experts.gate_up_proj": Source(rows, count),
        "experts.down_proj": Source((Piece(f"{matrices}w2", parts=count, index=-1, transpose=True),), count),
    }
