"""DeepSeek V4: attention over a window and pooled entries, experts chosen by tables, streams that are mixed anew.

Source: transformers' ``deepseek_v4``, also for what config.json may leave out, and its ``conversion_mapping`` for the
names of published files. Files that transformers itself writes have names of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.checks import record_drafts
from inference.modelling.families.config import CheckpointView, Facts
from inference.modelling.families.config_key_tables import COMMON, ROPE_MEMBERS, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Alias, Members, Only
from inference.modelling.families.config_values import (
    activation,
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, read_layers
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.headers import matrix_shape, vector_length
from inference.modelling.families.moe_config import ExpertNames, check_routing, count_experts, expert_sources
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.windows import layer_types
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec, CompressedIndexerSpec, CompressorSpec
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.parts import NormSpec, RopeSpec, prefixed
from inference.modelling.specs.sinkhorn_streams import SinkhornStreamsSpec
from inference.modelling.specs.sources import Piece, Source, concatenated, tensor
from inference.modelling.specs.token_moe import TokenMoESpec

SLIDING, SPARSE, HEAVY = TYPES = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
TYPE_OF_RATIO = {0: SLIDING, 4: SPARSE, 128: HEAVY}
RATE_KEYS = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}
"""Early names of the tokens of an entry, beside ``compress_rates``."""
MLP_TYPES = TABLE, SCORED = ("hash_moe", "moe")
SCORES = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid"}
ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
NO_BIAS = Only((False,), "the projections have no biases")
ROPES = Members(ROPE_MEMBERS)
CONFIG_KEYS: Mapping[str, Table] = {
    "deepseek_v4": {
        **COMMON,
        **used(
            "num_attention_heads", "head_dim", "q_lora_rank", "sliding_window", "layer_types", "compress_ratios",
            "compress_rope_theta", "rope_theta", "partial_rotary_factor", "qk_rope_head_dim", "o_groups", "o_lora_rank",
            "index_n_heads", "index_head_dim", "index_topk", "rms_norm_eps", "hidden_act", "hc_mult",
            "hc_sinkhorn_iters", "hc_eps", "mlp_layer_types", "num_hash_layers", "n_routed_experts",
            "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "scoring_func",
            "routed_scaling_factor", "swiglu_limit",
        ),
        **aliases("n_routed_experts", "num_local_experts"),
        **{early: Alias((f"compress_rates.{kind}",)) for kind, early in RATE_KEYS.items()},
        **harmless("of the layers that draft, which are left out", "num_nextn_predict_layers"),
        "compress_rates": Members(used(SPARSE, HEAVY)),
        "rope_parameters": ROPES,
        "rope_scaling": ROPES,
        "num_key_value_heads": Only((1,), "all heads share one key"),
        "attention_bias": NO_BIAS,
        "mlp_bias": NO_BIAS,
        "norm_topk_prob": Only((True,), "the weights are divided by their sum"),
        "topk_method": Only(("noaux_tc",), "a bias is added to the scores for choosing"),
        "expert_dtype": Only(("fp8", "fp4"), "experts of other types aren't read"),
    }
}  # fmt: skip

# transformers' defaults.
CONTEXT = 1 << 20
WINDOW = 128
TOP_K_ENTRIES = 512
TOP_K_EXPERTS = 6
ROTATED_SHARE = 64 / 512
THETA, COMPRESS_THETA = 10000.0, 160000.0

NAMES: Mapping[str, Sequence[str]] = {
    "token_norm.weight": ("input_layernorm.weight", "attn_norm.weight"),
    "channel_norm.weight": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "q_a_proj.weight": ("self_attn.q_a_proj.weight", "attn.wq_a.weight"),
    "q_a_norm.weight": ("self_attn.q_a_norm.weight", "attn.q_norm.weight"),
    "q_b_proj.weight": ("self_attn.q_b_proj.weight", "attn.wq_b.weight"),
    "kv_proj.weight": ("self_attn.kv_proj.weight", "attn.wkv.weight"),
    # transformers writes the last of these.
    "kv_norm.weight": ("self_attn.kv_norm.weight", "attn.kv_norm.weight", "attn.norm.weight"),
    "o_a": ("self_attn.o_a_proj.weight", "attn.wo_a.weight"),
    "o_b_proj.weight": ("self_attn.o_b_proj.weight", "attn.wo_b.weight"),
    "sinks": ("self_attn.sinks", "attn.attn_sink"),
    "compressor.kv": ("self_attn.compressor.kv_proj.weight", "attn.compressor.wkv.weight"),
    "compressor.gate": ("self_attn.compressor.gate_proj.weight", "attn.compressor.wgate.weight"),
    "compressor.position_bias": ("self_attn.compressor.position_bias", "attn.compressor.ape"),
    "compressor.norm.weight": ("self_attn.compressor.kv_norm.weight", "attn.compressor.norm.weight"),
    "indexer.q_proj.weight": ("self_attn.compressor.indexer.q_b_proj.weight", "attn.indexer.wq_b.weight"),
    "indexer.head_weights.weight": (
        "self_attn.compressor.indexer.scorer.weights_proj.weight",
        "attn.indexer.weights_proj.weight",
    ),
    "indexer.compressor.kv": (
        "self_attn.compressor.indexer.kv_proj.weight",
        "attn.indexer.compressor.wkv.weight",
    ),
    "indexer.compressor.gate": (
        "self_attn.compressor.indexer.gate_proj.weight",
        "attn.indexer.compressor.wgate.weight",
    ),
    "indexer.compressor.position_bias": (
        "self_attn.compressor.indexer.position_bias",
        "attn.indexer.compressor.ape",
    ),
    "indexer.compressor.norm.weight": (
        "self_attn.compressor.indexer.kv_norm.weight",
        "attn.indexer.compressor.norm.weight",
    ),
    "experts": ("mlp.experts.", "ffn.experts."),
    "router.weight": ("mlp.gate.weight", "ffn.gate.weight"),
    "router.correction_bias": ("mlp.gate.e_score_correction_bias", "ffn.gate.bias"),
    "token_experts": ("mlp.gate.tid2eid", "ffn.gate.tid2eid"),
    "shared.gate": ("mlp.shared_experts.gate_proj.weight", "ffn.shared_experts.w1.weight"),
    "shared.up": ("mlp.shared_experts.up_proj.weight", "ffn.shared_experts.w3.weight"),
    "shared_expert.down_proj.weight": ("mlp.shared_experts.down_proj.weight", "ffn.shared_experts.w2.weight"),
    **{f"hyper.token.{leaf}": (f"attn_hc.{leaf}", f"hc_attn_{leaf}") for leaf in ("fn", "base", "scale")},
    **{f"hyper.channel.{leaf}": (f"ffn_hc.{leaf}", f"hc_ffn_{leaf}") for leaf in ("fn", "base", "scale")},
}
"""Our names of a layer's tensors, or of parts of them, to those of transformers' memory and of published files."""
STREAM_HEAD = {leaf: (f"hc_head.hc_{leaf}", f"hc_head_{leaf}") for leaf in ("fn", "base", "scale")}
EXPERTS = ExpertNames(gate="w1", up="w3", down="w2")


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The names of one layer's tensors in the files.

    Attributes:
        view: The checkpoint.
        start: Of the names.
        form: Which of ``NAMES`` the files have where neither is there: 0, those of memory; 1, published ones.
    """

    view: CheckpointView
    start: str
    form: int

    def __getitem__(self, key: str) -> str:
        """The full name of a tensor, by its key in ``NAMES``."""
        return _first(self.view, self.start, NAMES[key], self.form)

    def __contains__(self, key: str) -> bool:
        return self[key] in self.view.tensors

    @property
    def experts(self) -> str:
        """Start of the experts' names."""
        return self.start + NAMES["experts"][self.form]

    def sources(self, *keys: str) -> dict[str, Source]:
        """The sources of parameters that are tensors as they are."""
        return {key: tensor(self[key]) for key in keys}


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(
        view,
        embeddings=("embed_tokens.weight", "embed.weight"),
        head="head.weight" if "head.weight" in view.tensors else "lm_head.weight",
        default_max_position_embeddings=CONTEXT,
    )
    norm, act = rms_norm(view), activation(view)
    form = int(f"{layout.layer(0)}attn.wkv.weight" in view.tensors)
    layers = [LayerNames(view, layout.layer(number), form) for number in range(layout.num_layers)]
    _check_kinds(view, layers)
    head = {leaf: _first(view, layout.prefix, names, form) for leaf, names in STREAM_HEAD.items()}
    streams = _streams(view, head["fn"], layout.hidden_size, norm)
    ropes = _ropes(view, layers[0], layout.max_position_embeddings)

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        names = layers[number]
        attention, sources = _attention(view, names, norm, ropes)
        experts, own = _experts(view, names, act, layout.vocab_size)
        sources = prefixed("token_mixer", sources) | prefixed("channel_mixer", own)
        sources |= names.sources("token_norm.weight", "channel_norm.weight")
        sources |= names.sources(*(key for key in NAMES if key.startswith("hyper.")))
        spec = LayerSpec(
            token_mixer=attention, token_norm=norm, channel_mixer=experts, channel_norm=norm, hyper=streams
        )
        return spec, sources

    specs, sources = read_layers(layout.num_layers, read_layer)
    record_drafts(view)
    return decoder_spec(
        view,
        layout,
        "deepseek_v4",
        specs,
        {**sources, **{f"streams.{leaf}": tensor(name) for leaf, name in head.items()}},
        norm,
        streams=GatedStreamsSpec(streams.num_streams, streams.magnitude, streams.eps, streams.norm_eps),
    )


def _first(view: CheckpointView, start: str, names: Sequence[str], form: int) -> str:
    """The first of the names that is there, else that of the form."""
    found = [start + name for name in names]
    return next((name for name in found if name in view.tensors), found[form])


def _streams(view: CheckpointView, name: str, hidden_size: int, norm: NormSpec) -> SinkhornStreamsSpec:
    """The residual streams, whose number is in the shape of the tensor that reads them at their end."""
    count = matrix_shape(view.tensors, name)[0]
    check_size(view, count, f"rows of {name}", "hc_mult")
    return SinkhornStreamsSpec(
        num_streams=count,
        magnitude=2.0,
        eps=number_with_evidence(view, "streams.eps", ("hc_eps",), 1e-6, low=0.0, high=1.0),
        norm_eps=norm.eps,
        iterations=integer_with_evidence(view, "streams.iterations", ("hc_sinkhorn_iters",), 20, high=1000),
    )


def _kind(names: LayerNames) -> str:
    """The type of a layer's attention, by its tensors."""
    if "compressor.position_bias" not in names:
        return SLIDING
    return SPARSE if "indexer.q_proj.weight" in names else HEAVY


def _check_kinds(view: CheckpointView, layers: Sequence[LayerNames]) -> None:
    """Compare the types of layers that config.json states with those that the tensors have.

    Raises:
        TensorShapeMismatch: They differ.
    """
    config, count = view.config, len(layers)
    kinds = [_kind(names) for names in layers]
    _compare(layer_types(view, count, TYPES), kinds, "layer_types")
    ratios = config.integers("compress_ratios")
    if ratios:
        if len(ratios) < count or not set(ratios) <= TYPE_OF_RATIO.keys():
            raise UnsupportedArchitecture(
                f"config.json: compress_ratios is {str(list(ratios))[:80]}; it needs one of "
                f"{', '.join(map(str, TYPE_OF_RATIO))} for each of {count} layers.",
                param="compress_ratios",
            )
        _compare([TYPE_OF_RATIO[ratio] for ratio in ratios[:count]], kinds, "compress_ratios")
    mlps: tuple[str, ...] | None = config.strings("mlp_layer_types") or None
    if mlps is not None and (len(mlps) != count or not set(mlps) <= set(MLP_TYPES)):
        raise CorruptCheckpoint(
            f"config.json: mlp_layer_types is {str(list(mlps))[:80]}; it needs one of {', '.join(MLP_TYPES)} for each "
            f"of {count} layers.",
            param="mlp_layer_types",
        )
    found = [TABLE if "token_experts" in names else SCORED for names in layers]
    _compare(mlps, found, "mlp_layer_types")
    if "num_hash_layers" in config:
        first = config.integer("num_hash_layers", low=0)
        _compare([TABLE if number < first else SCORED for number in range(count)], found, "num_hash_layers")


def _compare(stated: Sequence[str] | None, found: Sequence[str], key: str) -> None:
    for number, (kind, own) in enumerate(zip(stated or (), found, strict=False)):
        if kind != own:
            raise TensorShapeMismatch(
                f"config.json makes layer {number} {kind} ({key}), but it has the tensors of {own}; correct "
                "config.json.",
                param=key,
            )


def _ropes(view: CheckpointView, names: LayerNames, max_positions: int) -> Mapping[bool, RopeSpec]:
    """The rotation of layers without entries (False) and with them (True).

    Raises:
        CorruptCheckpoint: ``rope_parameters`` is no object.
        TensorShapeMismatch: ``qk_rope_head_dim`` is another number than a rotation has.
        UnsupportedArchitecture: A rotation depends on the length.
    """
    head_dim = vector_length(view.tensors, names["kv_norm.weight"])
    check_size(view, head_dim, f"length of {names['kv_norm.weight']}", "head_dim")
    main, compress = _rope_values(view, head_dim)
    # The fact rope.theta is that of the key rope_theta.
    beside = replace(view, facts=Facts())
    rest = {key: value for key, value in view.config.values.items() if key not in ROPE_KEYS}
    found = {}
    for has_entries, (own, values, theta) in enumerate(((view, main, THETA), (beside, compress, COMPRESS_THETA))):
        found[bool(has_entries)] = rope = read_rope(
            own.with_config({**rest, "rope_parameters": values}),
            head_dim,
            max_position_embeddings=max_positions,
            default_theta=theta,
            default_partial=1.0,
            interleaved=True,
        )
        if rope.depends_on_length:
            raise UnsupportedArchitecture(
                "config.json: rope types whose frequencies depend on the length (dynamic, longrope) are not supported "
                "here, as pooled entries are rotated once.",
                param="rope_type",
            )
        check_size(view, rope.rotary_dim, "rotated values by partial_rotary_factor", "qk_rope_head_dim")
    view.facts.add("rope.compress_theta", found[True].theta, "config.json, or the default")
    if (scaling := found[True].scaling) is not None:
        view.facts.add("rope.scaling", scaling.kind, "config.json, of layers with pooled entries")
    return found


def _rope_values(view: CheckpointView, head_dim: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rope keys of layers without entries and with them; where config.json has one set, only the latter stretch.

    Raises:
        CorruptCheckpoint: ``rope_parameters`` is no object.
    """
    config = view.config
    # Of two objects transformers takes this one.
    stated: Any = config.get("rope_scaling") or config.get("rope_parameters", default={})
    if not isinstance(stated, Mapping):
        raise CorruptCheckpoint(
            f"config.json: rope_parameters is {str(stated)[:60]!r}; it must be an object.", param="rope_parameters"
        )
    main, compress = stated.get("main"), stated.get("compress")
    if isinstance(main, Mapping) and isinstance(compress, Mapping):
        return dict(main), dict(compress)
    dim = config.optional_integer("qk_rope_head_dim")
    default = ROTATED_SHARE if dim is None else min(dim / head_dim, 1.0)
    share = config.number("partial_rotary_factor", low=0.0, high=1.0, default=default)
    both = {key: value for key, value in stated.items() if key not in ("main", "compress")}
    if (both.get("rope_type") or both.get("type")) == "yarn":
        # The published code doesn't scale cosines and sines by YaRN's magnitude.
        both.setdefault("attention_factor", 1.0)
    both |= {"rope_theta": config.get("compress_rope_theta", default=COMPRESS_THETA), "partial_rotary_factor": share}
    return {"rope_theta": config.get("rope_theta", default=THETA), "partial_rotary_factor": share}, both


def _attention(
    view: CheckpointView, names: LayerNames, norm: NormSpec, ropes: Mapping[bool, RopeSpec]
) -> tuple[CompressedAttentionSpec, dict[str, Source]]:
    """A layer's attention, whose type its tensors tell apart."""
    tensors, kind = view.tensors, _kind(names)
    width, (rows, rank) = (
        vector_length(tensors, names["kv_norm.weight"]),
        matrix_shape(tensors, names["q_b_proj.weight"]),
    )
    heads, (output_rows, group_width) = rows // width, matrix_shape(tensors, names["o_a"])
    check_size(view, width, f"length of {names['kv_norm.weight']}", "head_dim")
    check_size(view, heads, f"heads of {names['q_b_proj.weight']}", "num_attention_heads")
    check_size(view, rank, f"columns of {names['q_b_proj.weight']}", "q_lora_rank")
    groups = heads * width // group_width
    if groups * group_width != heads * width or output_rows % groups:
        raise TensorShapeMismatch(
            f"{names['o_a']} has shape {[output_rows, group_width]}, but {heads} heads of {width} values can't be "
            f"split into groups of {group_width} values with equal shares of the rows.",
            param=names["o_a"],
        )
    check_size(view, groups, f"groups of {names['o_a']}", "o_groups")
    check_size(view, output_rows // groups, f"rows of a group of {names['o_a']}", "o_lora_rank")
    rope = ropes[kind != SLIDING]
    compressor = None if kind == SLIDING else _compressor(view, names, kind, width, rope, norm)
    spec = CompressedAttentionSpec(
        num_heads=heads,
        head_dim=width,
        q_lora_rank=rank,
        scale=width**-0.5,
        rope=rope,
        norm=norm,
        sliding_window=integer_with_evidence(
            view, "attention.sliding_window", ("sliding_window",), WINDOW, high=1 << 30
        ),
        output_groups=groups,
        output_rank=output_rows // groups,
        compressor=compressor,
        indexer=None if compressor is None or kind != SPARSE else _indexer(view, names, compressor),
    )
    return spec, _attention_sources(names, spec)


def _attention_sources(names: LayerNames, spec: CompressedAttentionSpec) -> dict[str, Source]:
    sources = names.sources(
        "q_a_proj.weight", "q_a_norm.weight", "q_b_proj.weight", "kv_proj.weight", "kv_norm.weight", "o_b_proj.weight",
        "sinks",
    )  # fmt: skip
    for number, name in enumerate(spec.output_names()):
        first = number * spec.output_rank
        sources[f"o_a.{name}.weight"] = Source((Piece(names["o_a"], rows=(first, first + spec.output_rank)),))
    parts = []
    if spec.compressor is not None:
        parts.append("compressor")
    if spec.indexer is not None:
        parts.append("indexer.compressor")
        sources |= names.sources("indexer.q_proj.weight", "indexer.head_weights.weight")
    for part in parts:
        sources[f"{part}.kv_gate_proj.weight"] = concatenated(names[f"{part}.kv"], names[f"{part}.gate"])
        sources |= names.sources(f"{part}.position_bias", f"{part}.norm.weight")
    return sources


def _compressor(
    view: CheckpointView, names: LayerNames, kind: str, width: int, rope: RopeSpec, norm: NormSpec
) -> CompressorSpec:
    bias = names["compressor.position_bias"]
    window = matrix_shape(view.tensors, bias)[0]
    for key in (f"compress_rates.{kind}", RATE_KEYS[kind]):
        check_size(view, window, f"rows of {bias}", key)
    return CompressorSpec(window, width, overlaps=kind == SPARSE, rope=rope, norm=norm)


def _indexer(view: CheckpointView, names: LayerNames, compressor: CompressorSpec) -> CompressedIndexerSpec:
    """What chooses a layer's entries.

    Raises:
        UnsupportedArchitecture: More values are rotated than its heads have.
    """
    heads = matrix_shape(view.tensors, names["indexer.head_weights.weight"])[0]
    length = names["indexer.compressor.norm.weight"]
    width = vector_length(view.tensors, length)
    check_size(view, heads, f"rows of {names['indexer.head_weights.weight']}", "index_n_heads")
    check_size(view, width, f"length of {length}", "index_head_dim")
    assert compressor.rope is not None
    if compressor.rope.rotary_dim > width:
        raise UnsupportedArchitecture(
            f"config.json: {compressor.rope.rotary_dim} values of a head are rotated (partial_rotary_factor), but the "
            f"indexer's heads have {width} (index_head_dim).",
            param="index_head_dim",
        )
    own = CompressorSpec(compressor.window, width, overlaps=True, rope=compressor.rope, norm=compressor.norm)
    top_k = integer_with_evidence(view, "attention.index_top_k", ("index_topk",), TOP_K_ENTRIES)
    return CompressedIndexerSpec(heads, top_k, own)


def _experts(view: CheckpointView, names: LayerNames, act: str, vocab_size: int) -> tuple[MoESpec, dict[str, Source]]:
    """A layer's experts, chosen by a table where there is one."""
    count, width = count_experts(view, names.experts, down=EXPERTS.down)
    check_size(view, count, f"experts under {names.experts[:-1]}", "n_routed_experts", "num_local_experts")
    check_size(view, width, f"width of an expert under {names.experts[:-1]}", "moe_intermediate_size")
    view.facts.add("moe.num_experts", count, "expert tensors")
    down = names["shared_expert.down_proj.weight"]
    shared = matrix_shape(view.tensors, down)[1]
    num_shared = view.config.optional_integer("n_shared_experts", low=0)
    if num_shared not in (None, shared / width):
        raise TensorShapeMismatch(
            f"config.json says n_shared_experts {num_shared}, each {width} wide, but {down} has {shared} columns; "
            "correct config.json.",
            param="n_shared_experts",
        )
    options: dict[str, Any] = {
        "num_experts": count,
        "top_k": integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), TOP_K_EXPERTS),
        "intermediate_size": width,
        "activation": act,
        "scoring": SCORES[view.config.string("scoring_func", default="sqrtsoftplus", choices=tuple(SCORES))],
        "normalise_eps": 1e-20,
        "routed_scaling_factor": number_with_evidence(
            view, "moe.routed_scaling_factor", ("routed_scaling_factor",), 1.5, low=1e-6, high=1e6
        ),
        "shared_intermediate_size": shared,
        "activation_limit": number_with_evidence(
            view, "moe.activation_limit", ("swiglu_limit",), 10.0, low=1e-6, high=1e6
        ),
        "limits_shared": True,
    }
    has_table = "token_experts" in names
    spec = TokenMoESpec(**options, vocab_size=vocab_size) if has_table else MoESpec(**options, correction_bias=True)
    return check_routing(spec), {
        **expert_sources(view, names.experts, count, names=EXPERTS),
        **names.sources("router.weight", "token_experts" if has_table else "router.correction_bias"),
        "shared_expert.gate_up_proj.weight": concatenated(names["shared.gate"], names["shared.up"]),
        **names.sources("shared_expert.down_proj.weight"),
    }
