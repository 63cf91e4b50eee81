"""Step 3.5 and 3.7: gates on heads, more heads in windowed layers, experts whose products are cut layer by layer.

Source: https://huggingface.co/stepfun-ai/Step-3.7-Flash, and transformers' ``step3p7``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import (
    DECODER,
    MLP_BIAS,
    QKVO_BIAS,
    ROPE_MEMBERS,
    Table,
    aliases,
    harmless,
    used,
)
from inference.modelling.families.config_keys import Alias, Harmless, Members, Only
from inference.modelling.families.config_values import check_size, integer_with_evidence, number_with_evidence, rms_norm
from inference.modelling.families.decoder import drafting_layers
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import stack_shape
from inference.modelling.families.mlp_config import mlp_sources
from inference.modelling.families.moe_config import check_dense_layers, check_experts, check_routing, shared_width
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.families.rope_by_type import rope_of_type
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.layers import MLPSpec, MoESpec
from inference.modelling.specs.parts import RopeSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, tensor

NAMES = LayerNames(gate="g_proj")
COUNT = ("num_experts", "n_routed_experts", "moe_num_experts", "num_local_experts")
TOP_K = ("num_experts_per_tok", "moe_top_k")
SHARED = ("share_expert_dim", "share_expert_dims")
DRAFTING_LAYERS = ("num_nextn_predict_layers", "num_mtp_layers")
"""``COUNT`` to ``DRAFTING_LAYERS``: keys of transformers, and what published files call them."""
HEADS, OTHER, BY_LAYER = "num_attention_heads", "attention_other_setting", "per_layer_config"
WINDOWED = "num_sliding_attention_heads"
ROUTER_BIAS = "use_moe_router_bias"
MAX_LIMIT = 1e9
LIMITS = ("swiglu_limits", "swiglu_limits_shared")
KINDS = ("mlp_layer_types", "moe_layers_enum")
"""Keys that say which layers have experts."""
LISTS = ("layer_types", "mlp_layer_types", *LIMITS, "rope_theta", "partial_rotary_factors")
"""Keys with an entry for each layer, and further ones for layers that draft."""
STEP: Table = {
    **DECODER,
    **dict.fromkeys(("rope_parameters", "rope_scaling"), Members(ROPE_MEMBERS)),
    "attention_bias": QKVO_BIAS,
    "mlp_bias": MLP_BIAS,
    **used(COUNT[0], TOP_K[0], SHARED[0], DRAFTING_LAYERS[0], *LISTS, *KINDS),
    **{key: Alias(COUNT[:number]) for number, key in enumerate(COUNT) if number},
    **aliases(*TOP_K),
    **aliases(*SHARED),
    **aliases(*DRAFTING_LAYERS),
    **aliases("num_key_value_heads", "num_attention_groups"),
    **aliases(f"{OTHER}.{HEADS}", WINDOWED),
    **used(
        "moe_intermediate_size", "moe_router_scaling_factor", "query_pre_attn_scalar", "sliding_window", ROUTER_BIAS
    ),
    OTHER: Members({
        **used(HEADS),
        **harmless("the tensors say it", "attention_type", "num_attention_groups", "head_dim", "true_head_dim"),
    }),
    BY_LAYER: Members(used(HEADS)),
    **harmless("of layers that draft, which aren't read", "mtp_layer_types", "mtp_mlp_layer_types"),
    **harmless("the tensors say which layers have experts", "moe_every_n_layer", "moe_layer_offset"),
    "need_fp32_gate": Harmless("scores are float32 always"),
    "hidden_act": Only(("silu", "swigluoai"), "the activation is SiLU"),
    "gating": Only((True, "per-head"), "gates are of heads"),
    **dict.fromkeys(
        ("use_head_wise_attn_gate", "use_qk_norm", "use_moe", "norm_expert_weight", "zero_centered"),
        Only((True,), "the layers have it"),
    ),
    **dict.fromkeys(("use_bidirectional_attention", "use_mfa", "sink"), Only((False,), "the layers don't have it")),
    "moe_router_activation": Only(("sigmoid",), "scores are sigmoids"),
    "att_impl_type": Only(("GQA",), "heads are grouped"),
    "use_rope_layers": Only(([], True), "all layers rotate"),
    "yarn_only_types": Only((TYPES[1],), "windowed layers aren't stretched"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {
    "step3p5": STEP,
    "step3p7": {**around(STEP), "understand_projector_stride": Harmless("pictures aren't read")},
}

# transformers' defaults.
CONTEXT = 128000
ROPES = {kind: {"rope_theta": 10_000.0} for kind in TYPES}
FIRST_SPARSE = 3


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    drafts = view.config.integer(*DRAFTING_LAYERS, default=0, low=0, high=64)
    decoder = AttentionDecoder.read(
        _with_heads(view, 0),
        NAMES,
        default_head_dim=128,
        default_max_position_embeddings=CONTEXT,
        prediction_layers=drafts,
    )
    layout, count = decoder.layout, decoder.layout.num_layers
    view = _without_drafts(view, count, drafts)
    decoder = replace(decoder, view=view)
    types = layer_types(view, count, TYPES) or (TYPES[1],) * count
    is_published = any(f"{layout.layer(number)}moe.gate.weight" in view.tensors for number in range(count))
    router = "moe.gate" if is_published else "mlp.gate"
    for key, sparse in _sparse_layers(view, count).items():
        check_dense_layers(view, layout, key, sparse.__contains__, router=router)
    scalar = number_with_evidence(
        view,
        "attention.query_pre_attn_scalar",
        ("query_pre_attn_scalar",),
        float(decoder.heads.head_dim),
        low=1e-6,
        high=1e9,
    )
    limits = [_limits(view, key, count) for key in LIMITS]

    def adapt(number: int, layer: HeadLayer) -> HeadLayer:
        routed, dense = (own[number] for own in limits)
        spec, sources = layer
        channel = spec.channel_mixer
        if isinstance(channel, MoESpec):
            return replace(
                spec, channel_mixer=replace(channel, post_activation_limit=routed, shared_post_limit=dense)
            ), sources
        assert isinstance(channel, MLPSpec)
        return replace(spec, channel_mixer=replace(channel, post_activation_limit=dense)), sources

    return decoder.spec(
        "step3p5",
        norm=rms_norm(view, default=1e-5, offset=1.0),
        ropes=_ropes(view, decoder, types),
        windows=window_of_each_layer(types, _window(view, types)),
        heads=[read_heads(_with_heads(view, number), layout.layer(number)) for number in range(count)],
        qk_norm="head",
        attention_options={"output_gate": True, "gate_per_head": True, "scale": scalar**-0.5},
        act="silu",
        experts=lambda layer: _experts(view, layer, is_published=is_published),
        router=f"{router}.weight",
        adapt=adapt,
        ignored=drafting_layers(layout),
    )


def _without_drafts(view: CheckpointView, count: int, drafts: int) -> CheckpointView:
    """The view with as many entries in lists as there are layers.

    Raises:
        CorruptCheckpoint: A list has other entries.
    """
    lists: dict[str, Any] = {key: view.config.get(key) for key in LISTS}
    found = {key: list(value) for key, value in lists.items() if isinstance(value, list | tuple) and value}
    for key, value in found.items():
        if len(value) not in (count, count + drafts):
            raise CorruptCheckpoint(
                f"config.json: {key} has {len(value)} entries for {count} layers and {drafts} that draft; it needs one "
                "for each layer.",
                param=key,
            )
    return view.changed(**{key: value[:count] for key, value in found.items()})


def _with_heads(view: CheckpointView, number: int) -> CheckpointView:
    """The view with the layer's number of heads as that of all."""
    config = view.config
    if BY_LAYER in config:
        return view.changed(**{HEADS: config.get(f"{BY_LAYER}.{number}.{HEADS}", HEADS)})
    types = config.strings("layer_types")
    if types[number : number + 1] != (TYPES[0],):
        return view
    return view.changed(**{HEADS: config.get(WINDOWED, f"{OTHER}.{HEADS}", HEADS)})


def _sparse_layers(view: CheckpointView, count: int) -> Mapping[str, set[int]]:
    """The numbers of the layers with experts, by each of ``KINDS`` that config.json has."""
    kinds, found = view.config.strings(KINDS[0]), {}
    if kinds:
        found[KINDS[0]] = {number for number, kind in enumerate(kinds) if kind == "sparse"}
    if KINDS[1] in view.config:
        found[KINDS[1]] = _listed_layers(view)
    return found or {KINDS[0]: set(range(FIRST_SPARSE, count))}


def _listed_layers(view: CheckpointView) -> set[int]:
    """The numbers in ``moe_layers_enum``, a list or one within a string."""
    early = view.config.get(KINDS[1])
    if not isinstance(early, str):
        return set(view.config.integers(KINDS[1]))
    entries = [entry.strip() for entry in early.split(",") if entry.strip()]
    if not all(entry.isdecimal() for entry in entries):
        raise CorruptCheckpoint(
            f"config.json: {KINDS[1]} is {early[:60]!r}; it must be numbers of layers, separated by commas.",
            param=KINDS[1],
        )
    return {int(entry) for entry in entries}


def _window(view: CheckpointView, types: Sequence[str]) -> int | None:
    window = sliding_window(view)
    if window is None and TYPES[0] in types:
        raise CorruptCheckpoint(
            f"config.json: layer_types has {TYPES[0]}, but there is no sliding_window; add its width.",
            param="sliding_window",
        )
    return window


def _limits(view: CheckpointView, key: str, count: int) -> list[float | None]:
    """Where the products of each layer are cut; null and 0 mean nowhere.

    Raises:
        CorruptCheckpoint: The key isn't a list, or an entry isn't a number that is 0 or above.
    """
    stated: Any = view.config.get(key, default=[]) or [None] * count
    if not isinstance(stated, list):
        raise CorruptCheckpoint(
            f"config.json: {key} is {str(stated)[:60]!r}; it must be a list of a number, or null, for each layer.",
            param=key,
        )
    for value in stated:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value <= MAX_LIMIT):
            raise CorruptCheckpoint(
                f"config.json: {key} has {str(value)[:60]!r}; each entry must be a number from 0 to {MAX_LIMIT:g}, "
                "or null.",
                param=key,
            )
    return [float(value) if value else None for value in stated]


def _ropes(view: CheckpointView, decoder: AttentionDecoder, types: Sequence[str]) -> list[RopeSpec]:
    """The rotation of each layer.

    Raises:
        CorruptCheckpoint: Lists of published files differ among the layers of one type.
    """
    if view.config.get("rope_parameters") and view.config.get("rope_scaling"):
        raise CorruptCheckpoint(
            "config.json has rope_parameters and rope_scaling; remove the one that the model wasn't trained with.",
            param="rope_scaling",
        )
    if "rope_parameters" not in view.config:
        nested: dict[str, dict[str, Any]] = {kind: {} for kind in types}
        for ours, theirs in (("rope_theta", "rope_theta"), ("partial_rotary_factor", "partial_rotary_factors")):
            stated = view.config.get(theirs)
            if stated is None or stated == []:
                continue
            values = stated if isinstance(stated, list | tuple) else [stated] * len(types)
            for kind, value in zip(types, values, strict=True):
                if nested[kind].setdefault(ours, value) != value:
                    raise CorruptCheckpoint(
                        f"config.json: {theirs} has {nested[kind][ours]} and {value} for layers of type {kind}; layers "
                        "of a type rotate alike.",
                        param=theirs,
                    )
        if TYPES[1] in nested:
            scaling: Any = view.config.get("rope_scaling", default={})
            nested[TYPES[1]] |= scaling if isinstance(scaling, Mapping) else {"rope_type": str(scaling)}
        view = view.changed(rope_parameters=nested)
    options = {"max_position_embeddings": decoder.layout.max_position_embeddings, "default_partial": 1.0}
    ropes = {kind: rope_of_type(view, kind, decoder.heads.head_dim, ROPES, **options) for kind in sorted(set(types))}
    return [ropes[kind] for kind in types]


def _experts(view: CheckpointView, layer: str, *, is_published: bool) -> ChannelMixer:
    """A layer's experts, which are stacked, and the sources of their parameters."""
    base = f"{layer}moe." if is_published else f"{layer}mlp."
    shared = f"{layer}share_expert." if is_published else f"{base}shared_experts."
    stack = f"{base}down_proj.weight" if is_published else f"{base}experts.down_proj"
    count, _, width = stack_shape(view.tensors, stack)
    check_experts(view, base, count, width, COUNT, "moe_intermediate_size")
    check_size(view, shared_width(view, shared), f"width of {shared[:-1]}", *SHARED)
    bias = f"{base}router_bias" if is_published else f"{base}gate.e_score_correction_bias"
    has_bias = view.config.boolean(ROUTER_BIAS, default=True)
    if not has_bias and bias in view.tensors:
        # By its name the key says that none is added; transformers reads the tensor all the same.
        raise TensorShapeMismatch(
            f"config.json says {ROUTER_BIAS} false, but {bias} is there; correct config.json.", param=ROUTER_BIAS
        )
    spec = check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", TOP_K, 8),
            intermediate_size=width,
            scoring="sigmoid",
            routed_scaling_factor=number_with_evidence(
                view, "moe.routed_scaling_factor", ("moe_router_scaling_factor",), 1.0, low=1e-6, high=1e6
            ),
            correction_bias=has_bias,
            shared_intermediate_size=shared_width(view, shared),
        )
    )
    sources = {"router.weight": tensor(f"{base}gate.weight"), "experts.down_proj": tensor(stack)}
    if spec.correction_bias:
        sources["router.correction_bias"] = tensor(bias)
    if is_published:
        pieces = tuple(Piece(f"{base}{name}.weight", index=-1) for name in ("gate_proj", "up_proj"))
        sources["experts.gate_up_proj"] = Source(pieces, count)
    else:
        sources["experts.gate_up_proj"] = tensor(f"{base}experts.gate_up_proj")
    return spec, sources | prefixed(
        "shared_expert", mlp_sources(view, MLPSpec(spec.shared_intermediate_size), shared, mlp="")
    )
