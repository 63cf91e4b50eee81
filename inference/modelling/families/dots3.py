"""Dots 3 Note: DeepSeek-V3.2's layers with gates on heads, and windowed ones with sizes and a rotation of their own.

Only its text model is read. Source: transformers' ``dots3_note``, also for what config.json may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import ROPE_MEMBERS, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Harmless, Members, Only
from inference.modelling.families.config_values import activation, integer_with_evidence, rms_norm
from inference.modelling.families.decoder import decoder_spec, drafting_layers, llama_layer, llama_parts, read_layers
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.deepseek import DENSE, check_expert_layers
from inference.modelling.families.grouped_moe import GROUPED_MOE, grouped_moe
from inference.modelling.families.latent_attention import mla_sources, mla_spec, read_indexer
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import check_dense_layers, has_router, moe_sources
from inference.modelling.families.rope_by_type import ROPE_KEYS, rope_of_type
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import layer_types
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import ChannelMixerSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec
from inference.modelling.specs.sources import Source

SIZES = (
    "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip
"""Keys that windowed layers have of their own: under ``per_layer_config``, or with ``swa_`` before them."""
WIDTHS = harmless("the other widths say it", "num_key_value_heads", "head_dim")
ROPE = Members({**ROPE_MEMBERS, "partial_rotary_factor": Harmless("the widths of a head say it")})
LATER = "num_nextn_predict_layers"
SHARED = ("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size")
TEXT: Table = {
    **{key: rule for key, rule in DENSE.items() if key not in ("rotary_percent", "embedding_initializer_range")},
    **GROUPED_MOE,
    **used(
        "mlp_layer_types", "moe_layer_freq", SHARED[0], "layer_types", "use_dsa", "use_sliding_window",
        "sliding_window", "sliding_window_size", "index_topk", "index_head_dim", "index_n_heads", "swa_rope_theta",
        LATER,
        *(f"swa_{key}" for key in SIZES),
    ),
    **aliases(*SHARED),
    **WIDTHS,
    **{f"swa_{key}": rule for key, rule in WIDTHS.items()},
    "per_layer_config": Members({**used(*SIZES), **WIDTHS}),
    "rope_parameters": ROPE,
    "rope_scaling": ROPE,
    "partial_rotary_factor": Harmless("the widths of a head say it"),
    "scoring_func": Only(("sigmoid",), "scores are sigmoids"),
    "topk_method": Only(("noaux_tc",), "experts are chosen with a bias"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"dots3_note_text": TEXT, "dots3_note": {**TEXT, **around(TEXT)}}

# transformers' defaults.
CONTEXT = 524288
WINDOW = 512
WINDOWED_HEADS = 64
FULL, INDEXED, SLIDING = KINDS = ("full_attention", "indexed_attention", "sliding_attention")
THETA, WINDOWED_THETA = 80_000_000.0, 50_000.0


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    later = view.config.integer(LATER, default=1, low=0, high=MAX_LAYERS)
    layout = read_layout(view, prediction_layers=later, default_max_position_embeddings=CONTEXT)
    norm, act = rms_norm(view, default=1e-5), activation(view)
    kinds = _kinds(view, layout.num_layers)
    _check_expert_layers(view, layout)
    views = {FULL: view, INDEXED: view, SLIDING: _windowed(view, kinds)}
    forms = {kind: _attention(views[kind], layout, kinds, kind, norm) for kind in sorted(set(kinds))}

    def read_layer(number: int) -> tuple[LayerSpec, dict[str, Source]]:
        layer, mla = layout.layer(number), forms[kinds[number]]
        channel, sources = _channel_mixer(view, layer, act)
        parts = llama_parts(layer, mla_sources(mla, f"{layer}self_attn."), sources)
        return llama_layer(mla, channel, norm), parts

    layers, sources = read_layers(layout.num_layers, read_layer)
    ignored = (ROTARY_BUFFERS, *drafting_layers(layout))
    return decoder_spec(view, layout, "dots3_note_text", layers, sources, norm, ignored=ignored)


def _kinds(view: CheckpointView, count: int) -> tuple[str, ...]:
    """The type of each layer; early files call those full whose keys are chosen."""
    chooses: bool | None = None if "per_layer_config" in view.config else True
    if "use_dsa" in view.config:
        chooses = view.config.boolean("use_dsa")
    full = FULL if chooses is False else INDEXED
    kinds = layer_types(view, count, KINDS)
    if kinds is None:
        has_windows = view.config.boolean("use_sliding_window", default=True)
        return tuple(SLIDING if has_windows and number > 1 and number % 4 != 1 else full for number in range(count))
    return kinds if chooses is None else tuple(kind if kind == SLIDING else full for kind in kinds)


def _attention(
    view: CheckpointView, layout: DecoderLayout, kinds: tuple[str, ...], kind: str, norm: NormSpec
) -> MLASpec:
    """The attention of the layers of a type, whose latents are stretched to the magnitude of the hidden state.

    Args:
        view: config.json with their sizes.

    Raises:
        UnsupportedArchitecture: The queries have no latent.
    """
    base = f"{layout.layer(kinds.index(kind))}self_attn."
    context = layout.max_position_embeddings
    spec = mla_spec(view, base, context, interleaved=None)
    if spec.q_lora_rank is None:
        raise UnsupportedArchitecture(f"{base}q_a_proj.weight is missing.", param="q_lora_rank")
    rope, window = _rope(view, kind, spec.qk_rope_head_dim, context), None
    if kind == SLIDING:
        keys = ("sliding_window", "sliding_window_size")
        window = integer_with_evidence(view, "attention.sliding_window", keys, WINDOW, high=1 << 30)
    return replace(
        spec,
        rope=rope,
        scale=spec.scale * (layout.hidden_size / spec.q_lora_rank) ** 0.5,
        latent_multiplier=(layout.hidden_size / spec.kv_lora_rank) ** 0.5,
        q_a_norm=norm,
        kv_a_norm=norm,
        k_rope_norm=norm,
        head_gate=True,
        indexer=read_indexer(view, base, rope) if kind == INDEXED else None,
        sliding_window=window,
    )


def _windowed(view: CheckpointView, kinds: tuple[str, ...]) -> CheckpointView:
    """config.json with the sizes of windowed layers.

    transformers 5.23 writes what differs under each layer's number, published files have keys for all of these layers.

    Raises:
        CorruptCheckpoint: ``per_layer_config`` isn't an object of objects.
        UnsupportedArchitecture: Layers of one type differ.
    """
    key = "per_layer_config"
    by_layer = view.config.get(key)
    if by_layer is None:
        stated = {size: view.config.get(f"swa_{size}") for size in SIZES}
        heads = view.config.integer(f"swa_{SIZES[0]}", default=WINDOWED_HEADS, high=1 << 16)
        return view.changed(**stated | {SIZES[0]: heads})
    if not isinstance(by_layer, Mapping) or not all(isinstance(part, Mapping) for part in by_layer.values()):
        raise CorruptCheckpoint(
            f"config.json: {key} is {str(by_layer)[:60]!r}; it must be an object of objects.", param=key
        )
    found = [(kind, by_layer.get(str(number), by_layer.get(kind, {}))) for number, kind in enumerate(kinds)]
    own = [part for kind, part in found if kind == SLIDING]
    if any(part != own[0] for part in own) or any(part for kind, part in found if kind != SLIDING):
        raise UnsupportedArchitecture(
            f"config.json: {key} must say the same for all windowed layers, and nothing for the others.", param=key
        )
    return view.changed(**own[0]) if own else view


def _rope(view: CheckpointView, kind: str, width: int, context: int) -> RopeSpec:
    """The rotation of the layers of a type, whose rotated width the shapes say.

    Raises:
        UnsupportedArchitecture: Two descriptions.
    """
    config = view.config
    described = config.get("rope_parameters") or config.get("rope_scaling")
    if config.get("rope_parameters") and config.get("rope_scaling"):
        raise UnsupportedArchitecture(
            "config.json has rope_parameters and rope_scaling; remove the one that the model wasn't trained with.",
            param="rope_scaling",
        )
    theta = config.number("rope_theta", default=THETA, low=1.001, high=1e15)
    if not described and kind == SLIDING:
        theta = config.number("swa_rope_theta", default=WINDOWED_THETA, low=1.001, high=1e15)
    rest = {key: value for key, value in config.values.items() if key not in (*ROPE_KEYS, "partial_rotary_factor")}
    if not isinstance(described, Mapping) or not any(name in described for name in KINDS):
        described = {kind: described or {"rope_type": "default"}}
    found = {
        name: {key: value for key, value in part.items() if key != "partial_rotary_factor"}
        if isinstance(part, Mapping) else part
        for name, part in described.items()
    }  # fmt: skip
    return rope_of_type(
        view.with_config({**rest, "rope_parameters": found}),
        kind,
        width,
        {kind: {"rope_theta": theta}},
        max_position_embeddings=context,
        interleaved=True,
    )


def _channel_mixer(view: CheckpointView, layer: str, act: str) -> tuple[ChannelMixerSpec, dict[str, Source]]:
    """A layer's experts or MLP, and the sources of its parameters.

    Raises:
        TensorShapeMismatch: config.json states another width of the shared experts.
    """
    if not has_router(view, layer):
        mlp = mlp_spec(view, layer, act)
        return mlp, mlp_sources(view, mlp, layer)
    moe = grouped_moe(view, layer, act, shared_key=None, needs_bias=True)
    each, found = view.config.optional_integer(*SHARED), moe.shared_intermediate_size
    count = view.config.integer("n_shared_experts", default=1)
    if each is not None and each * count != found:
        raise TensorShapeMismatch(
            f"config.json says n_shared_experts {count}, each {each} wide ({SHARED[0]}), but {layer}mlp.shared_experts "
            f"are {found} wide; correct config.json.",
            param=SHARED[0],
        )
    return moe, moe_sources(view, moe, f"{layer}mlp.", shared="shared_experts.")


def _check_expert_layers(view: CheckpointView, layout: DecoderLayout) -> None:
    """Compare the layers with experts that config.json states with those of the tensors."""
    frequency = view.config.get("moe_layer_freq")
    if view.config.strings("mlp_layer_types") or not isinstance(frequency, list):
        check_expert_layers(view, layout)
        return
    flags = view.config.integers("moe_layer_freq")
    if len(flags) < layout.num_layers:
        raise CorruptCheckpoint(
            f"config.json: moe_layer_freq has {len(flags)} entries for {layout.num_layers} layers.",
            param="moe_layer_freq",
        )
    first = view.config.integer("first_k_dense_replace", default=1, low=0)
    key = "first_k_dense_replace, moe_layer_freq"
    check_dense_layers(view, layout, key, lambda number: number >= first and bool(flags[number]))
