"""DeepSeek V2 and V3, Youtu-LLM, MiniCPM 3: multi-head latent attention, fine-grained experts with shared ones.

Sources: https://arxiv.org/abs/2405.04434 (V2), https://arxiv.org/abs/2412.19437 (V3); the config keys
are those of the published files and of transformers' ``deepseek_v2`` and ``deepseek_v3``. Youtu-LLM and MiniCPM 3
have the attention without experts (transformers' ``youtu`` and ``minicpm3``); GLM-4.7-Flash has
both (``glm4_moe_lite``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import COMMON, EXPERTS, MLP_BIAS, ROPE, Table, used
from inference.modelling.families.config_keys import Biases, Harmless, Only
from inference.modelling.families.config_values import (
    activation,
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, drafting_layers, llama_layer, llama_parts, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.grouped_moe import expert_sizes, grouped_moe, scaling_factor
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import (
    check_dense_layers,
    check_routing,
    has_router,
    moe_sources,
)
from inference.modelling.families.prediction_head import HeadLayer, names_behind_layers, prediction_head
from inference.modelling.families.rope_config import read_rope, yarn_softmax_multiplier
from inference.modelling.indexer_specs import IndexerSpec
from inference.modelling.layer_parts import NormSpec, prefixed
from inference.modelling.layer_specs import ChannelMixerSpec, MLASpec, MoESpec
from inference.modelling.spec import ModelSpec, Piece, Source, tensor

DENSE: Table = {
    **COMMON,
    **ROPE,
    **used(
        "num_attention_heads", "intermediate_size", "hidden_act", "rms_norm_eps", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "qk_head_dim", "v_head_dim",
    ),
    "num_key_value_heads": Harmless("latent attention has no key/value heads"),
    "head_dim": Harmless("qk_rope_head_dim, qk_nope_head_dim and v_head_dim say it"),
    "embedding_initializer_range": Harmless("training only"),
    "attention_bias": Biases(r"self_attn\.(?:q_a_proj|kv_a_proj_with_mqa|o_proj)"),
    "mlp_bias": MLP_BIAS,
}  # fmt: skip
DEEPSEEK: Table = {
    **DENSE,
    **EXPERTS,
    **used(
        "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "moe_layer_freq",
        "n_group", "topk_group", "topk_method", "scoring_func", "routed_scaling_factor", "num_nextn_predict_layers",
    ),
}  # fmt: skip

CONFIG_KEYS: Mapping[str, Table] = {
    "deepseek_v2": {
        **DEEPSEEK,
        "norm_topk_prob": Only((False,), "the published code and transformers differ in what it does"),
        "rope_interleave": Only((True,), "adjacent pairs are rotated"),
    },
    "deepseek_v3": {**DEEPSEEK, **used("norm_topk_prob", "rope_interleave", "num_mtp_layers")},
    "deepseek_v32": {
        **DEEPSEEK,
        **used("norm_topk_prob", "mlp_layer_types", "index_topk", "index_head_dim", "index_n_heads"),
        "layer_types": Only(("indexed_attention",), "every layer chooses its keys"),
    },
    "glm4_moe_lite": {**DEEPSEEK, **used("norm_topk_prob", "rope_interleave", "mlp_layer_types")},
    "youtu": {**DENSE, **used("rope_interleave")},
    "minicpm3": {**DENSE, **used("scale_emb", "scale_depth", "dim_model_base")},
}  # fmt: skip

LATENT_NORM = NormSpec("rms", 1e-6)
"""eps of the norms of the latents, which ``rms_norm_eps`` doesn't reach."""


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="deepseek_v3")
    prediction = view.config.integer(
        "num_nextn_predict_layers",
        "num_mtp_layers",
        default=1 if model_type in ("deepseek_v3", "deepseek_v32", "glm4_moe_lite") else 0,
        low=0,
        high=MAX_LAYERS,
    )
    layout = read_layout(view, prediction_layers=prediction, tied_by_default=model_type in ("youtu", "minicpm3"))
    norm = rms_norm(view, default=1e-5 if model_type in ("minicpm3", "glm4_moe_lite") else 1e-6)
    multipliers = _multipliers(view, model_type, layout)
    act = activation(view)
    interleaved = model_type != "minicpm3" and (
        model_type == "deepseek_v2" or view.config.boolean("rope_interleave", default=True)
    )
    attention = f"{layout.layer(0)}self_attn."
    mla = mla_spec(view, attention, layout.max_position_embeddings, interleaved=interleaved)
    if model_type == "deepseek_v32":
        mla = replace(mla, indexer=_indexer(view, attention, mla))
    _check_dense_layers(view, layout)

    def read_layer(number: int) -> HeadLayer:
        layer = layout.layer(number)
        mixer: ChannelMixerSpec
        if has_router(view, layer):
            mixer = _moe_spec(view, model_type, layer, act)
            channel = moe_sources(view, mixer, f"{layer}mlp.", shared="shared_experts.")
        else:
            mixer = mlp_spec(view, layer, act)
            channel = mlp_sources(view, mixer, layer)
        spec = replace(llama_layer(mla, mixer, norm), residual_multiplier=multipliers["residual"])
        return spec, llama_parts(layer, mla_sources(mla, f"{layer}self_attn."), channel)

    layers, sources = read_layers(layout.num_layers, read_layer)
    head = prediction_head(
        view,
        layout,
        names_behind_layers(layout),
        norm,
        lambda: [read_layer(layout.num_layers)],
        feeds_normed_rows=False,
    )
    ignored = (ROTARY_BUFFERS, *drafting_layers(layout))
    return decoder_spec(
        view,
        layout,
        model_type,
        layers,
        sources,
        norm,
        ignored=ignored,
        embedding_multiplier=multipliers["embedding"],
        logits_multiplier=multipliers["logits"],
        prediction_head=head,
    )


def _multipliers(view: CheckpointView, model_type: str, layout: DecoderLayout) -> Mapping[str, float]:
    """MiniCPM's factors of the embedding, the residual stream and the logits; 1 for the others."""
    if model_type != "minicpm3":
        return {"embedding": 1.0, "residual": 1.0, "logits": 1.0}
    embedding = number_with_evidence(view, "embedding_multiplier", ("scale_emb",), 12.0, low=1e-6, high=1e6)
    depth = number_with_evidence(view, "scale_depth", ("scale_depth",), 1.4, low=1e-6, high=1e6)
    base = integer_with_evidence(view, "dim_model_base", ("dim_model_base",), 256)
    return {
        "embedding": embedding,
        "residual": depth / math.sqrt(layout.num_layers),
        "logits": base / layout.hidden_size,
    }


def mla_spec(
    view: CheckpointView, base: str, max_positions: int, *, interleaved: bool | None, output: str = "o_proj"
) -> MLASpec:
    """Sizes from the shapes of the layer under ``base``; only the head count has to come from config.json.

    Args:
        base: With the dot: ``model.layers.0.self_attn.``.
        max_positions: The model's context.
        interleaved: Whether adjacent pairs are rotated, or the halves; None: nothing is rotated.
        output: The file's name of the last projection.
    """
    config, tensors, facts = view.config, view.tensors, view.facts
    heads = config.integer("num_attention_heads", high=1 << 16)
    facts.add("attention.num_heads", heads, "config.json")
    rank = _columns(view, f"{base}kv_b_proj.weight")
    rope_dim = _rows(view, f"{base}kv_a_proj_with_mqa.weight") - rank
    compressed = f"{base}q_a_proj.weight" in tensors
    q_name = f"{base}q_b_proj.weight" if compressed else f"{base}q_proj.weight"
    nope_dim = _per_head(q_name, _rows(view, q_name), heads) - rope_dim
    value_dim = _per_head(f"{base}{output}.weight", _columns(view, f"{base}{output}.weight"), heads)
    expanded = _per_head(f"{base}kv_b_proj.weight", _rows(view, f"{base}kv_b_proj.weight"), heads)
    if rope_dim < 1 or nope_dim < 1 or expanded != nope_dim + value_dim:
        raise TensorShapeMismatch(
            f"the attention tensors of {base[:-1]} don't fit {heads} heads: rotated width {rope_dim}, unrotated "
            f"{nope_dim}, value width {value_dim}, but kv_b_proj has {expanded} rows for each head.",
            param=f"{base}kv_b_proj.weight",
        )
    q_rank = _rows(view, f"{base}q_a_proj.weight") if compressed else None
    sizes = {
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": nope_dim,
        "qk_head_dim": nope_dim + rope_dim,
        "v_head_dim": value_dim,
        "q_lora_rank": q_rank,
    }
    for key, found in sizes.items():
        check_size(view, found or 0, f"shapes of the tensors of {base[:-1]}", key)
        if found is not None:
            facts.add(f"mla.{key}", found, f"shapes of the tensors of {base[:-1]}")
    rope, scale = None, (nope_dim + rope_dim) ** -0.5
    if interleaved is not None:
        rope = read_rope(view, rope_dim, max_position_embeddings=max_positions, interleaved=interleaved)
        scale *= yarn_softmax_multiplier(rope)
    return MLASpec(
        num_heads=heads,
        kv_lora_rank=rank,
        q_lora_rank=q_rank,
        qk_nope_head_dim=nope_dim,
        qk_rope_head_dim=rope_dim,
        v_head_dim=value_dim,
        scale=scale,
        rope=rope,
        q_a_norm=LATENT_NORM if compressed else None,
        kv_a_norm=LATENT_NORM,
        bias=f"{base}kv_a_proj_with_mqa.bias" in tensors,
    )


def _indexer(view: CheckpointView, base: str, spec: MLASpec) -> IndexerSpec:
    """What chooses the keys of the attention ``spec``; it rotates the halves of what the attention rotates in pairs.

    Raises:
        UnsupportedArchitecture: The queries have no latent.
    """
    if spec.q_lora_rank is None or spec.rope is None:
        raise UnsupportedArchitecture(
            f"{base}q_a_proj.weight is missing; the indexer makes its queries from that latent.", param="q_lora_rank"
        )
    width = _rows(view, f"{base}indexer.wk.weight")
    heads = _rows(view, f"{base}indexer.weights_proj.weight")
    check_size(view, width, f"rows of {base}indexer.wk.weight", "index_head_dim")
    check_size(view, heads, f"rows of {base}indexer.weights_proj.weight", "index_n_heads")
    top_k = integer_with_evidence(view, "attention.index_topk", ("index_topk",), 2048)
    return IndexerSpec(heads, width, top_k, replace(spec.rope, interleaved=False), NormSpec("layer", 1e-6))


def _indexer_sources(base: str) -> dict[str, Source]:
    names = {"q_proj": "wq_b", "k_proj": "wk", "head_weights": "weights_proj"}
    sources = {f"{ours}.weight": tensor(f"{base}indexer.{theirs}.weight") for ours, theirs in names.items()}
    sources |= {f"k_norm.{leaf}": tensor(f"{base}indexer.k_norm.{leaf}") for leaf in ("weight", "bias")}
    return prefixed("indexer", sources)


def mla_sources(spec: MLASpec, base: str, *, output: str = "o_proj") -> dict[str, Source]:
    """``kv_b_proj`` holds k and v head by head; they become two parameters."""
    nope, both = spec.qk_nope_head_dim, spec.qk_nope_head_dim + spec.v_head_dim
    sources = {
        "kv_a_proj.weight": tensor(f"{base}kv_a_proj_with_mqa.weight"),
        "kv_a_norm.weight": tensor(f"{base}kv_a_layernorm.weight"),
        "k_b_proj.weight": Source((Piece(f"{base}kv_b_proj.weight", per_group=(both, 0, nope)),)),
        "v_b_proj.weight": Source((Piece(f"{base}kv_b_proj.weight", per_group=(both, nope, both)),)),
        "o_proj.weight": tensor(f"{base}{output}.weight"),
    }
    if spec.q_lora_rank is None:
        sources["q_proj.weight"] = tensor(f"{base}q_proj.weight")
    else:
        sources["q_a_proj.weight"] = tensor(f"{base}q_a_proj.weight")
        sources["q_a_norm.weight"] = tensor(f"{base}q_a_layernorm.weight")
        sources["q_b_proj.weight"] = tensor(f"{base}q_b_proj.weight")
    if spec.indexer is not None:
        sources |= _indexer_sources(base)
    if spec.bias:
        sources["kv_a_proj.bias"] = tensor(f"{base}kv_a_proj_with_mqa.bias")
        sources["o_proj.bias"] = tensor(f"{base}{output}.bias")
        if spec.q_lora_rank is not None:
            sources["q_a_proj.bias"] = tensor(f"{base}q_a_proj.bias")
    return sources


def _moe_spec(view: CheckpointView, model_type: str, layer: str, act: str) -> MoESpec:
    if model_type != "deepseek_v2":
        _expect(view, "scoring_func", "sigmoid", ("sigmoid",))
        _expect(view, "topk_method", "noaux_tc", ("noaux_tc",))
        if model_type == "glm4_moe_lite":
            return grouped_moe(view, layer, act, top_k=4, factor=1.8)
        return grouped_moe(view, layer, act, groups=8, top_k_groups=4, factor=2.5)
    config, base = view.config, f"{layer}mlp."
    count, width, width_of_shared = expert_sizes(view, base, "n_shared_experts")
    _expect(view, "scoring_func", "softmax", ("softmax",))
    method = _expect(view, "topk_method", "greedy", ("greedy", "group_limited_greedy"))
    grouped = method == "group_limited_greedy"
    return check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 6),
            intermediate_size=width,
            activation=act,
            normalise_top_k=False,
            routed_scaling_factor=scaling_factor(view, 1.0),
            num_expert_groups=config.integer("n_group", default=1) if grouped else 1,
            top_k_groups=config.integer("topk_group", default=1) if grouped else 1,
            shared_intermediate_size=width_of_shared,
        )
    )


def _expect(view: CheckpointView, key: str, default: str, known: tuple[str, ...]) -> str:
    """A routing rule by name.

    Raises:
        UnsupportedArchitecture: Not one that this version of the family has.
    """
    value = view.config.string(key, default=default)
    if value not in known:
        raise UnsupportedArchitecture(
            f"config.json: {key} {value[:60]!r} is not supported here; supported are {', '.join(known)}.", param=key
        )
    return value


def _check_dense_layers(view: CheckpointView, layout: DecoderLayout) -> None:
    config = view.config
    kinds = config.strings("mlp_layer_types")
    if len(kinds) == layout.num_layers:
        check_dense_layers(view, layout, "mlp_layer_types", lambda number: kinds[number] == "sparse")
    elif "first_k_dense_replace" in config:
        first = config.integer("first_k_dense_replace", low=0)
        step = config.integer("moe_layer_freq", default=1)
        key = "first_k_dense_replace, moe_layer_freq"
        check_dense_layers(view, layout, key, lambda number: number >= first and number % step == 0)


def _rows(view: CheckpointView, name: str) -> int:
    return matrix_shape(view.tensors, name)[0]


def _columns(view: CheckpointView, name: str) -> int:
    return matrix_shape(view.tensors, name)[1]


def _per_head(name: str, size: int, heads: int) -> int:
    if size % heads:
        raise TensorShapeMismatch(
            f"{name}: {size} can't be split into the {heads} heads that config.json states.", param=name
        )
    return size // heads
