"""Inkling: attention with a relative position bias and no rotation, short convolutions, scored shared experts.

Source: transformers' ``inkling``, also for what config.json may leave out, and its ``conversion_mapping`` for the names
of published files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inference.errors import MissingTensor
from inference.modelling.families.checks import record_drafts
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import (
    activation,
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, norm_sources, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.head_sizes import HeadSizes, checked_heads
from inference.modelling.families.headers import matrix_shape, stack_shape, vector_length
from inference.modelling.families.mlp_config import MLPNames, mlp_spec
from inference.modelling.families.moe_config import check_dense_layers, check_layer_kinds, check_routing, has_router
from inference.modelling.families.state_space import conv_shape
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import layer_types
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.inkling import MixerConvsSpec, RelativeAttentionSpec, SharedMoESpec
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor

ONLY_UNTIED = Only((False,), "the head is a matrix of its own")
INKLING: Table = {
    **COMMON,
    **{key: rule for key, rule in HEADS.items() if key not in ("num_heads", "num_kv_heads")},
    **used(
        "model_max_length", "unpadded_vocab_size", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim",
        "sliding_window_size", "d_rel", "rel_extent", "log_scaling_n_floor", "log_scaling_alpha",
        "layer_types", "local_layer_ids", "rms_norm_eps", "conv_kernel_size", "mlp_layer_types",
        "dense_mlp_idx", "intermediate_size", "dense_intermediate_size", "moe_intermediate_size", "hidden_act",
        "n_routed_experts", "num_experts_per_tok", "n_shared_experts", "route_scale",
        "logits_mup_width_multiplier",
    ),
    **harmless(
        "of the layers that draft",
        "num_mtp_layers", "chain_hidden_post_norm", "mtp_hidden_states_first", "mtp_local_layer_ids",
    ),
    **aliases("sliding_window_size", "sliding_window"),
    **aliases("conv_kernel_size", "sconv_kernel_size"),
    **aliases("n_routed_experts", "num_local_experts"),
    **harmless("no code reads it", "rms_norm_eps_moe_gate", "number_of_conv_states"),
    "shared_expert_sink": Only((True,), "the router scores the shared experts"),
    "tie_word_embeddings": ONLY_UNTIED,
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {
    "inkling_text": INKLING,
    "inkling_mm_model": {
        **around(INKLING),
        **harmless("of the layers that draft", "mtp_config"),
        **harmless("pictures and sound aren't read", "image_bos_token_id", "audio_bos_token_id"),
        "tie_word_embeddings": ONLY_UNTIED,
    },
}

# transformers' defaults.
CONTEXT = 131072
TOP_K = 6
ROUTE_SCALE = 8.0
LOG_SCALING = 0.1
WIDTH_MULTIPLIER = 24.0
FULL, SLIDING = TYPES = ("hybrid", "hybrid_sliding")
FULL_EVERY = 6


@dataclass(frozen=True, slots=True)
class Names:
    """How files call what differs between the two forms.

    Attributes:
        prefixes, embedding, embedding_norm, head: As in ``read_layout`` and ``decoder_spec``.
        norms: Those before attention and before the MLP.
        attention: Start of the attention's tensor names, within the layer.
        qkv, relative, output: The attention's projections.
        conv: What stands behind the name of a convolution.
        down, expert_down, shared_down: The last matrix of a dense MLP, of the experts and of the shared ones.
        correction_bias: Of the router, within the MLP.
    """

    prefixes: tuple[str, ...]
    embedding: str
    embedding_norm: str
    head: str
    norms: tuple[str, str]
    attention: str
    qkv: tuple[str, str, str]
    relative: str
    output: str
    conv: str
    down: str
    expert_down: str
    shared_down: str
    correction_bias: str


IN_MEMORY = Names(
    prefixes=("model.", ""),
    embedding="embed_tokens.weight",
    embedding_norm="embed_tokens.embed_norm",
    head="lm_head.weight",
    norms=("input_layernorm", "post_attention_layernorm"),
    attention="self_attn.",
    qkv=("q_proj", "k_proj", "v_proj"),
    relative="r_proj",
    output="o_proj",
    conv=".conv1d.weight",
    down="down_proj",
    expert_down="down_proj",
    shared_down="down_proj",
    correction_bias="gate.e_score_correction_bias",
)
PUBLISHED = Names(
    prefixes=("model.llm.",),
    embedding="embed.weight",
    embedding_norm="embed_norm",
    head="unembed.weight",
    norms=("attn_norm", "mlp_norm"),
    attention="attn.",
    qkv=("wq_du", "wk_dv", "wv_dv"),
    relative="wr_du",
    output="wo_ud",
    conv=".weight",
    down="w2_md",
    expert_down="w2_weight",
    shared_down="shared_w2_weight",
    correction_bias="gate.bias",
)


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    names = PUBLISHED if "model.llm.embed.weight" in view.tensors else IN_MEMORY
    layout = padded_layout(view, names.prefixes, names.embedding, names.head, CONTEXT)
    norm, act = rms_norm(view), activation(view)
    kinds = attention_kinds(view, layout.num_layers)
    _check_dense_layers(view, layout)

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        convs = MixerConvsSpec(layout.hidden_size, conv_kernel(view, f"{layer}attn_sconv{names.conv}"))
        attention, sources = _attention(view, layer, names, kinds[number], norm)
        sources = prefixed("token_mixer", sources)
        channel, own = _experts(view, layer, names, act) if has_router(view, layer) else _mlp(view, layer, names, act)
        sources |= prefixed("channel_mixer", own)
        for kind, name in zip(("token", "channel"), ("attn", "mlp"), strict=True):
            sources[f"{kind}_conv.conv1d.weight"] = tensor(f"{layer}{name}_sconv{names.conv}")
        for ours, theirs in zip(("token_norm", "channel_norm"), names.norms, strict=True):
            sources |= prefixed(ours, norm_sources(norm, layer + theirs))
        spec = LayerSpec(
            token_mixer=attention, token_norm=norm, channel_mixer=channel, channel_norm=norm, mixer_convs=convs
        )
        return spec, sources

    layers, sources = read_layers(layout.num_layers, read_layer)
    sources |= cut_head(layout)
    record_drafts(view)
    divisor = number_with_evidence(
        view, "logits_scaling", ("logits_mup_width_multiplier",), WIDTH_MULTIPLIER, low=1e-6, high=1e6
    )
    return decoder_spec(
        view,
        layout,
        "inkling_text",
        layers,
        sources,
        norm,
        embedding_norm=norm,
        embedding_norm_name=names.embedding_norm,
        logits_multiplier=1 / divisor,
    )


def padded_layout(
    view: CheckpointView, prefixes: tuple[str, ...], embedding: str, head: str, context: int
) -> DecoderLayout:
    """What is around the layers; of a padded vocabulary only the rows before the padding, which the head may lack.

    Args:
        view: The checkpoint.
        prefixes, embedding, head: Names, as in ``read_layout``.
        context: Where none is stated.

    Raises:
        MissingTensor: There is no head, which the embedding doesn't stand in for.
    """
    size = view.config.optional_integer("unpadded_vocab_size")
    layout = read_layout(
        view,
        prefixes=prefixes,
        embeddings=(embedding,),
        head=head,
        default_max_position_embeddings=context,
        cut_head_rows=size,
    )
    if layout.head is None:
        raise MissingTensor(
            f"tensor {head} is missing from the checkpoint; the head is never the embedding.", param=head
        )
    if size is None or size >= layout.vocab_size:
        return layout
    return replace(layout, vocab_size=size, spare_rows=layout.vocab_size - size)


def cut_head(layout: DecoderLayout) -> dict[str, Source]:
    """The source of a head whose rows are padded like those of the embedding."""
    if not layout.spare_rows or layout.head is None:
        return {}
    return {"lm_head.weight": Source((Piece(layout.head, rows=(0, layout.vocab_size)),))}


def attention_kinds(view: CheckpointView, count: int) -> tuple[str, ...]:
    """The type of each layer."""
    if (stated := layer_types(view, count, TYPES)) is not None:
        return stated
    if "local_layer_ids" in view.config:
        sliding = set(view.config.integers("local_layer_ids"))
        return tuple(TYPES[number in sliding] for number in range(count))
    return tuple(TYPES[(number + 1) % FULL_EVERY != 0] for number in range(count))


def _check_dense_layers(view: CheckpointView, layout: DecoderLayout) -> None:
    """Compare config.json's dense layers with those that have no router."""
    check_layer_kinds(view, layout)
    if not view.config.strings("mlp_layer_types") and "dense_mlp_idx" in view.config:
        first = view.config.integer("dense_mlp_idx", low=0)
        check_dense_layers(view, layout, "dense_mlp_idx", lambda number: number >= first)


def conv_kernel(view: CheckpointView, name: str) -> int:
    """Taps of the convolution whose weights are ``name``, checked against config.json."""
    kernel = conv_shape(view, name)[1]
    check_size(view, kernel, f"shape of {name}", "conv_kernel_size", "sconv_kernel_size")
    return kernel


def _attention(
    view: CheckpointView, layer: str, names: Names, kind: str, norm: NormSpec
) -> tuple[RelativeAttentionSpec, dict[str, Source]]:
    """A layer's attention, whose heads may differ between the two types of layers."""
    base, tensors = layer + names.attention, view.tensors
    query, key, _ = stored = [f"{base}{name}.weight" for name in names.qkv]
    swa = "swa_" if kind == SLIDING else ""
    head_dim = vector_length(tensors, f"{base}q_norm.weight")
    heads, kv_heads = (matrix_shape(tensors, name)[0] // head_dim for name in (query, key))
    profiles = f"{base}rel_logits_proj.proj"
    relative_width, extent = matrix_shape(tensors, profiles)
    check_size(view, head_dim, f"length of {base}q_norm.weight", f"{swa}head_dim")
    check_size(view, heads, f"heads of {query}", f"{swa}num_attention_heads")
    check_size(view, kv_heads, f"heads of {key}", f"{swa}num_key_value_heads")
    check_size(view, relative_width, f"rows of {profiles}", "d_rel")
    extent_keys = ("sliding_window_size", "sliding_window") if kind == SLIDING else ("rel_extent",)
    check_size(view, extent, f"columns of {profiles}", *extent_keys)
    checked_heads(HeadSizes(heads, kv_heads, head_dim), base)
    spec = RelativeAttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=1 / head_dim,
        qk_norm=norm,
        sliding_window=extent if kind == SLIDING else None,
        conv_kernel=conv_kernel(view, f"{base}k_sconv{names.conv}"),
        relative_width=relative_width,
        extent=extent,
        score_growth=score_growth(view) if kind == FULL else None,
    )
    sources = {
        "qkv_proj.weight": concatenated(*stored),
        "o_proj.weight": tensor(f"{base}{names.output}.weight"),
        "conv.conv1d.weight": concatenated(*(f"{base}{name}_sconv{names.conv}" for name in "kv")),
        "relative_proj.weight": tensor(f"{base}{names.relative}.weight"),
        "relative_profiles": tensor(profiles),
    }
    for name in ("q_norm", "k_norm"):
        sources |= prefixed(name, norm_sources(norm, base + name))
    return spec, sources


def score_growth(view: CheckpointView, default: int | None = None) -> tuple[float, int] | None:
    """How scores grow with the position in full layers, by default from ``default`` on; None: they don't."""
    floor = view.config.optional_integer("log_scaling_n_floor", high=1 << 30)
    floor = default if floor is None else floor
    if floor is None:
        return None
    slope = number_with_evidence(
        view, "attention.score_growth", ("log_scaling_alpha",), LOG_SCALING, low=-1e6, high=1e6
    )
    return slope, floor


def _mlp(view: CheckpointView, layer: str, names: Names, act: str) -> tuple[MLPSpec, dict[str, Source]]:
    """A dense MLP; ``intermediate_size`` is an expert's width where ``dense_intermediate_size`` is stated."""
    key = "dense_intermediate_size" if "dense_intermediate_size" in view.config else "intermediate_size"
    spec = replace(mlp_spec(view, layer, act, names=MLPNames(down=names.down, width_key=key)), has_output_scale=True)
    base = f"{layer}mlp."
    gate_up = concatenated(f"{base}gate_proj.weight", f"{base}up_proj.weight")
    if names is PUBLISHED:
        gate_up = interleaved(f"{base}w13_dn.weight")
    return spec, {
        "gate_up_proj.weight": gate_up,
        "down_proj.weight": tensor(f"{base}{names.down}.weight"),
        "output_scale": tensor(f"{base}global_scale"),
    }


def _experts(view: CheckpointView, layer: str, names: Names, act: str) -> tuple[SharedMoESpec, dict[str, Source]]:
    base = f"{layer}mlp."
    down, shared_down = f"{base}experts.{names.expert_down}", f"{base}shared_experts.{names.shared_down}"
    count, _, width = stack_shape(view.tensors, down)
    num_shared = stack_shape(view.tensors, shared_down)[0]
    width_key = "intermediate_size" if "dense_intermediate_size" in view.config else "moe_intermediate_size"
    check_size(view, count, f"matrices of {down}", "n_routed_experts", "num_local_experts")
    check_size(view, width, f"columns of {down}", width_key)
    check_size(view, num_shared, f"matrices of {shared_down}", "n_shared_experts")
    view.facts.add("moe.num_experts", count, "expert tensors")
    spec = SharedMoESpec(
        num_experts=count,
        top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), TOP_K),
        intermediate_size=width,
        activation=act,
        scoring="sigmoid",
        routed_scaling_factor=number_with_evidence(
            view, "moe.routed_scaling_factor", ("route_scale",), ROUTE_SCALE, low=0.0, high=1e6
        ),
        correction_bias=True,
        num_shared_experts=num_shared,
    )
    check_routing(spec)
    if names is PUBLISHED:
        gate_up = interleaved(f"{base}experts.w13_weight", count)
        shared_gate_up = interleaved(f"{base}shared_experts.shared_w13_weight", num_shared)
    else:
        gate_up = tensor(f"{base}experts.gate_up_proj")
        both = tuple(Piece(f"{base}shared_experts.{name}_proj", index=-1) for name in ("gate", "up"))
        shared_gate_up = Source(both, num_shared)
    return spec, {
        "router.weight": tensor(f"{base}gate.weight"),
        "router.correction_bias": tensor(base + names.correction_bias),
        "router.scale": tensor(f"{base}gate.global_scale"),
        "experts.gate_up_proj": gate_up,
        "experts.down_proj": tensor(down),
        "shared_experts.gate_up_proj": shared_gate_up,
        "shared_experts.down_proj": tensor(shared_down),
    }


def interleaved(name: str, count: int | None = None) -> Source:
    """Gate above up, whose rows take turns in the files; ``count``: of each matrix of a stack of so many."""
    index = None if count is None else -1
    return Source(tuple(Piece(name, index=index, stride=(first, 2)) for first in (0, 1)), count)
