"""Inkling 2: attention residuals over blocks of layers, clipped queries and keys, convolutions with taps by token.

Source: transformers' ``inkling2``, also for what config.json may leave out, and its ``conversion_mapping`` for the
names of published files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference.errors import TensorShapeMismatch
from inference.modelling.families.checks import record_drafts
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import COMMON, HEADS, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import (
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout
from inference.modelling.families.head_sizes import HeadSizes, checked_heads
from inference.modelling.families.headers import matrix_shape, stack_shape
from inference.modelling.families.inkling import (
    FULL,
    ONLY_UNTIED,
    SLIDING,
    attention_kinds,
    conv_kernel,
    cut_head,
    interleaved,
    padded_layout,
    score_growth,
)
from inference.modelling.families.moe_config import check_routing
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.inkling import MixerConvsSpec
from inference.modelling.specs.inkling2 import BlockResidualSpec, BlockStreamsSpec, ClippedAttentionSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor

INKLING2: Table = {
    **COMMON,
    **{key: rule for key, rule in HEADS.items() if key not in ("num_heads", "num_kv_heads")},
    **used(
        "model_max_length", "unpadded_vocab_size", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim",
        "sliding_window_size", "d_rel", "rel_extent", "log_scaling_n_floor", "log_scaling_alpha",
        "layer_types", "local_layer_ids", "rms_norm_eps", "conv_kernel_size",
        "moe_intermediate_size", "intermediate_size", "n_routed_experts",
        "num_experts_per_tok", "route_scale", "qk_l2_clip_threshold",
        "rel_l2_clip_threshold", "n_layers_per_attn_res_block", "mlp_gate_softcap", "mlp_up_softcap",
        "final_logit_softcapping",
    ),
    **aliases("sliding_window_size", "sliding_window"),
    **aliases("conv_kernel_size", "sconv_kernel_size"),
    **aliases("n_routed_experts", "num_local_experts"),
    **harmless("no code reads it", "number_of_conv_states"),
    "hidden_act": Only(("silu",), "experts have silu with caps"),
    "scoring_func": Only(("sigmoid",), "experts are scored by sigmoid"),
    "tie_word_embeddings": ONLY_UNTIED,
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {
    "inkling2_text": INKLING2,
    "inkling2": {**around(INKLING2), "tie_word_embeddings": ONLY_UNTIED},
}

# transformers' defaults.
CONTEXT = 1 << 20
TOP_K = 8
ROUTE_SCALE = 8.0
GROWS_FROM = 128000
QK_LIMIT, RELATIVE_LIMIT = 512**0.5, 8.0
GATE_CAP, UP_CAP, LOGITS_CAP = 4.0, 25.0, 30.0
BLOCK_LAYERS = 6
NORMALISE_EPS = 1e-20


@dataclass(frozen=True, slots=True)
class Names:
    """How files call what differs between the two forms.

    Attributes:
        prefixes, embedding, embedding_norm, head: As in ``padded_layout`` and ``decoder_spec``.
        norms: Those before attention and before the experts.
        input_norm: Behind "q", "k" and "v", the norms of the three inputs of full layers.
        attention: Start of the attention's tensor names, within the layer.
        qkv, relative, gate, sink, output: The attention's projections.
        conv, taps, taps_proj: What stands behind the name of a convolution, the latter two where taps depend on tokens.
        layer_convs: The convolutions behind attention and experts.
        down, correction_bias: Of the experts and the router, within their part.
        attention_query, mlp_query, final_query: Of a layer, by its number, and behind the layers.
        first_query: The layer whose attention's query has the number 0.
    """

    prefixes: tuple[str, ...]
    embedding: str
    embedding_norm: str
    head: str
    norms: tuple[str, str]
    input_norm: str
    attention: str
    qkv: tuple[str, str, str]
    relative: str
    gate: str
    sink: str
    output: str
    conv: str
    taps: str
    taps_proj: str
    layer_convs: tuple[str, str]
    down: str
    correction_bias: str
    attention_query: str
    mlp_query: str
    final_query: str
    first_query: int


IN_MEMORY = Names(
    prefixes=("model.", ""),
    embedding="embed_tokens.weight",
    embedding_norm="embed_tokens.embed_norm",
    head="lm_head.weight",
    norms=("input_layernorm", "post_attention_layernorm"),
    input_norm="_input_layernorm",
    attention="self_attn.",
    qkv=("q_proj", "k_proj", "v_proj"),
    relative="r_proj",
    gate="gate_proj",
    sink="sink_proj",
    output="o_proj",
    conv=".conv1d.weight",
    taps=".static_weight",
    taps_proj=".weight_proj.weight",
    layer_convs=("post_attention_convolution", "post_mlp_convolution"),
    down="down_proj",
    correction_bias="gate.e_score_correction_bias",
    attention_query="layers.{}.attention_input.query",
    mlp_query="layers.{}.mlp_input.query",
    final_query="final_input.query",
    first_query=0,
)
PUBLISHED = Names(
    prefixes=("model.llm.",),
    embedding="embed.weight",
    embedding_norm="embed_norm",
    head="unembed.weight",
    norms=("attn_norm", "mlp_norm"),
    input_norm="_input_norm",
    attention="attn.",
    qkv=("wq_du", "wk_dv", "wv_dv"),
    relative="wr_du",
    gate="gate_attn",
    sink="attn_sink_proj",
    output="wo_ud",
    conv=".weight",
    taps=".static_w",
    taps_proj=".weight_proj",
    layer_convs=("attn_sconv", "mlp_sconv"),
    down="w2_weight",
    correction_bias="gate.bias",
    attention_query="attn_res.attn_queries.{}",
    mlp_query="attn_res.mlp_queries.{}",
    final_query="attn_res.output_query",
    # The first layer has none, and the others' numbers start at 0.
    first_query=1,
)


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    names = PUBLISHED if "model.llm.embed.weight" in view.tensors else IN_MEMORY
    layout = padded_layout(view, names.prefixes, names.embedding, names.head, CONTEXT)
    norm = rms_norm(view)
    kinds = attention_kinds(view, layout.num_layers)
    _check_kinds(view, layout, names, kinds)
    block_layers = integer_with_evidence(
        view, "streams.layers_per_block", ("n_layers_per_attn_res_block",), BLOCK_LAYERS
    )

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer = layout.layer(number)
        kernel = conv_kernel(view, f"{layer}{names.layer_convs[0]}{names.conv}")
        attention, sources = _attention(view, layer, names, kinds[number], norm)
        sources = prefixed("token_mixer", sources)
        channel, own = _experts(view, layer, names)
        sources |= prefixed("channel_mixer", own)
        blocks = BlockResidualSpec(
            norm,
            num_inputs=3 if attention.has_three_inputs else 1,
            begins_block=number % block_layers == 0,
            reads_embedding=number == 0,
        )
        sources |= prefixed("blocks", _block_sources(layout, number, names, blocks))
        for kind, name in zip(("token", "channel"), names.layer_convs, strict=True):
            sources[f"{kind}_conv.conv1d.weight"] = tensor(f"{layer}{name}{names.conv}")
        convs = MixerConvsSpec(layout.hidden_size, kernel, (kernel + 1) ** -0.5)
        return LayerSpec(token_mixer=attention, channel_mixer=channel, mixer_convs=convs, blocks=blocks), sources

    layers, sources = read_layers(layout.num_layers, read_layer)
    sources |= cut_head(layout)
    sources["streams.query"] = _as_rows(layout, layout.prefix + names.final_query)
    record_drafts(view)
    return decoder_spec(
        view,
        layout,
        "inkling2_text",
        layers,
        sources,
        norm,
        embedding_norm=norm,
        embedding_norm_name=names.embedding_norm,
        logits_softcap=_positive(view, "logits_softcap", "final_logit_softcapping", LOGITS_CAP),
        streams=BlockStreamsSpec(),
    )


def _check_kinds(view: CheckpointView, layout: DecoderLayout, names: Names, kinds: Sequence[str]) -> None:
    """Compare the types of layers with their convolutions.

    Raises:
        TensorShapeMismatch: They contradict each other.
    """
    key = "local_layer_ids" if "layer_types" not in view.config and "local_layer_ids" in view.config else "layer_types"
    for number, kind in enumerate(kinds):
        taps = f"{layout.layer(number)}{names.attention}k_sconv{names.taps}"
        is_there = taps in view.tensors
        if is_there != (kind == FULL):
            raise TensorShapeMismatch(
                f"layer {number} is {kind} by {key}, but {taps} is {'there' if is_there else 'missing'}, which only "
                "full layers (hybrid) have; correct config.json, or complete the files.",
                param=key,
            )


def _positive(view: CheckpointView, fact: str, key: str, default: float) -> float:
    return number_with_evidence(view, fact, (key,), default, low=1e-6, high=1e6)


def _as_rows(layout: DecoderLayout, *names: str) -> Source:
    """Vectors of the hidden size, one below the other."""
    return Source(tuple(Piece(name, reshape=(1, layout.hidden_size)) for name in names))


def _block_sources(layout: DecoderLayout, number: int, names: Names, blocks: BlockResidualSpec) -> dict[str, Source]:
    """Queries and norms of what a layer's mixers read."""
    layer, (first, second) = layout.layer(number), names.norms
    single = blocks.num_inputs == 1
    norms = [first] if single else [kind + names.input_norm for kind in "qkv"]
    sources = {
        "token.norm.weight": _as_rows(layout, *(f"{layer}{name}.weight" for name in norms)),
        "channel.norm.weight": _as_rows(layout, f"{layer}{second}.weight"),
        "channel.query": _as_rows(layout, layout.prefix + names.mlp_query.format(number)),
    }
    if not blocks.reads_embedding:
        query = layout.prefix + names.attention_query.format(number - names.first_query)
        sources["token.query"] = _as_rows(layout, query) if single else tensor(query)
    return sources


def _attention(
    view: CheckpointView, layer: str, names: Names, kind: str, norm: NormSpec
) -> tuple[ClippedAttentionSpec, dict[str, Source]]:
    """A layer's attention, whose heads may differ between the two types of layers."""
    base, tensors, is_full = layer + names.attention, view.tensors, kind == FULL
    query, key, value = stored = [f"{base}{name}.weight" for name in names.qkv]
    profiles = f"{base}rel_logits_proj.proj"
    heads, head_dim = matrix_shape(tensors, f"{base}q_l2_clip.scale")
    kv_heads = matrix_shape(tensors, key)[0] // head_dim
    relative_width, extent = matrix_shape(tensors, profiles)
    swa = "swa_" if kind == SLIDING else ""
    check_size(view, head_dim, f"columns of {base}q_l2_clip.scale", f"{swa}head_dim")
    check_size(view, heads, f"rows of {base}q_l2_clip.scale", f"{swa}num_attention_heads")
    check_size(view, kv_heads, f"heads of {key}", f"{swa}num_key_value_heads")
    check_size(view, relative_width, f"rows of {profiles}", "d_rel")
    extent_keys = ("rel_extent",) if is_full else ("sliding_window_size", "sliding_window")
    check_size(view, extent, f"columns of {profiles}", *extent_keys)
    checked_heads(HeadSizes(heads, kv_heads, head_dim), base)
    kernel = _taps(view, f"{base}k_sconv{names.taps}") if is_full else conv_kernel(view, f"{base}k_sconv{names.conv}")
    spec = ClippedAttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        v_norm=NormSpec("rms", norm.eps, weightless=True),
        output_gate=True,
        sliding_window=None if is_full else extent,
        conv_kernel=kernel,
        conv_scale=((2 if is_full else 1) * kernel + 1) ** -0.5,
        relative_width=relative_width,
        extent=extent,
        score_growth=score_growth(view, GROWS_FROM) if is_full else None,
        qk_limit=_positive(view, "attention.qk_limit", "qk_l2_clip_threshold", QK_LIMIT),
        relative_limit=_positive(view, "attention.relative_limit", "rel_l2_clip_threshold", RELATIVE_LIMIT),
        has_three_inputs=is_full,
    )
    sources = {
        "qkv_proj.weight": tensor(query) if is_full else concatenated(*stored),
        "o_proj.weight": tensor(f"{base}{names.output}.weight"),
        "gate_proj.weight": tensor(f"{base}{names.gate}.weight"),
        "sink_proj.weight": tensor(f"{base}{names.sink}.weight"),
        "relative_proj.weight": tensor(f"{base}{names.relative}.weight"),
        "relative_profiles": tensor(profiles),
        "query_scale": tensor(f"{base}q_l2_clip.scale"),
        "relative_scale": tensor(f"{base}rel_l2_clip.scale"),
    }
    return spec, sources | _convolution(base, names, key, value, is_full=is_full)


def _taps(view: CheckpointView, name: str) -> int:
    """Taps of a convolution whose taps depend on tokens, checked against config.json."""
    taps = matrix_shape(view.tensors, name)[0]
    check_size(view, taps, f"rows of {name}", "conv_kernel_size", "sconv_kernel_size")
    return taps


def _convolution(base: str, names: Names, key: str, value: str, *, is_full: bool) -> dict[str, Source]:
    """Sources of the convolution of keys and values, and of what full layers project them by."""
    if not is_full:
        return {"conv.conv1d.weight": concatenated(*(f"{base}{name}_sconv{names.conv}" for name in "kv"))}
    return {
        "key_proj.weight": tensor(key),
        "value_proj.weight": tensor(value),
        "key_taps_proj.weight": tensor(f"{base}k_sconv{names.taps_proj}"),
        "value_taps_proj.weight": tensor(f"{base}v_sconv{names.taps_proj}"),
        "conv.taps": Source(tuple(Piece(f"{base}{name}_sconv{names.taps}", transpose=True) for name in "kv")),
    }


def _experts(view: CheckpointView, layer: str, names: Names) -> tuple[MoESpec, dict[str, Source]]:
    base = f"{layer}mlp."
    down = f"{base}experts.{names.down}"
    count, _, width = stack_shape(view.tensors, down)
    check_size(view, count, f"matrices of {down}", "n_routed_experts", "num_local_experts")
    for key in ("moe_intermediate_size", "intermediate_size"):
        check_size(view, width, f"columns of {down}", key)
    view.facts.add("moe.num_experts", count, "expert tensors")
    spec = MoESpec(
        num_experts=count,
        top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), TOP_K),
        intermediate_size=width,
        scoring="sigmoid",
        normalise_eps=NORMALISE_EPS,
        routed_scaling_factor=number_with_evidence(
            view, "moe.routed_scaling_factor", ("route_scale",), ROUTE_SCALE, low=0.0, high=1e6
        ),
        correction_bias=True,
        softcaps=(
            _positive(view, "moe.gate_softcap", "mlp_gate_softcap", GATE_CAP),
            _positive(view, "moe.up_softcap", "mlp_up_softcap", UP_CAP),
        ),
    )
    check_routing(spec)
    is_published = names is PUBLISHED
    gate_up = interleaved(f"{base}experts.w13_weight", count) if is_published else tensor(f"{base}experts.gate_up_proj")
    return spec, {
        "router.weight": tensor(f"{base}gate.weight"),
        "router.correction_bias": tensor(base + names.correction_bias),
        "experts.gate_up_proj": gate_up,
        "experts.down_proj": tensor(down),
    }
