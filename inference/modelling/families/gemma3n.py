"""Gemma 3n, its text model: four residual streams, inputs of each layer, keys and values shared at the end, cut gates.

Source: transformers' ``gemma3n_text``, also for what config.json may leave out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference.errors import CorruptCheckpoint, MissingTensor
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.attention_decoder import SANDWICH_NORMS
from inference.modelling.families.checks import OTHER_PARTS, ROTARY_BUFFERS, IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, Table, used
from inference.modelling.families.config_keys import Harmless
from inference.modelling.families.config_values import check_size, rms_norm
from inference.modelling.families.decoder import decoder_spec, norm_sources
from inference.modelling.families.gemma2 import gemma_activation, read_gemma, read_softcap
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.layer_inputs import layer_input_sources, layer_inputs_sources, layer_inputs_spec
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.rope_by_type import ropes_by_type
from inference.modelling.families.shared_cache import kv_sources, unused_projections
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import TYPES, full_every, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.altup import AltUpSpec, StreamsSpec
from inference.modelling.specs.layer_inputs import LayerInputSpec
from inference.modelling.specs.layers import MLPSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import Piece, Source, tensor

GEMMA3N: Table = {
    **{key: rule for key, rule in LLAMA_LIKE.items() if key not in ("mlp_bias", "hidden_act")},
    **used(
        "hidden_activation", "sliding_window", "layer_types", "final_logit_softcapping", "rope_local_base_freq",
        "vocab_size_per_layer_input", "hidden_size_per_layer_input", "num_kv_shared_layers", "altup_active_idx",
        "altup_correct_scale", "altup_num_inputs", "laurel_rank", "activation_sparsity_pattern",
    ),
    "altup_coef_clip": Harmless("training only"),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {"gemma3n_text": GEMMA3N, "gemma3n": around(GEMMA3N)}

# transformers' defaults.
CONTEXT = 32768
WINDOW = 512
PATTERN = 5
"""Every so many layers, one sees all positions."""
SHARED = 15
THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
SPARSITY_KEY = "activation_sparsity_pattern"
SPARSITY, NUM_SPARSE = 0.95, 10
"""The share of gates that is cut in so many layers, from the first on, of a model with more of them."""
ALTUP_NAMES = {
    "prediction.weight": "altup.prediction_coefs.weight",
    "correction.weight": "altup.correction_coefs.weight",
    "router.weight": "altup.modality_router.weight",
    "laurel_down_proj.weight": "laurel.linear_left.weight",
    "laurel_up_proj.weight": "laurel.linear_right.weight",
}
"""Our names of the matrices around a layer's mixers to the file's."""


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    decoder = read_gemma(view, context=CONTEXT)
    layout, norm, act = decoder.layout, rms_norm(view), gemma_activation(view)
    inputs = layer_inputs_spec(view, layout, norm)
    if inputs is None:
        name = f"{layout.prefix}embed_tokens_per_layer.weight"
        raise MissingTensor(f"{name} is missing: the table of the layers' inputs.", param=name)
    types = layer_types(view, layout.num_layers, TYPES) or full_every(PATTERN, layout.num_layers)
    windows = window_of_each_layer(types, sliding_window(view, default=WINDOW))
    ropes = ropes_by_type(view, decoder.rope, theta=THETA, local_theta=LOCAL_THETA)
    shared = kv_sources(view, types, SHARED)
    altup = _altup(view, layout.layer(0), norm)
    own_input = LayerInputSpec(inputs.width, act, norm)
    layers: list[LayerSpec] = []
    sources = layer_inputs_sources(inputs, layout.prefix) | _stream_sources(altup, layout.prefix)
    for number, (kind, source) in enumerate(zip(types, shared, strict=True)):
        layer = layout.layer(number)
        attention = attention_spec(
            view,
            layer,
            decoder.heads,
            ropes[kind],
            scale=1.0,
            sliding_window=windows[number],
            qk_norm=norm,
            v_norm=replace(norm, weightless=True) if source is None else None,
            kv_source=source,
        )
        mlp = _mlp(view, layer, act, number, layout.num_layers)
        layers.append(
            LayerSpec(
                token_mixer=attention, token_norm=norm, token_post_norm=norm, channel_mixer=mlp, channel_norm=norm,
                channel_post_norm=norm, altup=altup, layer_input=own_input,
            )
        )  # fmt: skip
        own = prefixed("token_mixer", attention_sources(view, attention, layer))
        own |= prefixed("channel_mixer", mlp_sources(view, mlp, layer)) | layer_input_sources(own_input, layer)
        own |= prefixed("altup", _altup_sources(altup, layer))
        for ours, theirs in SANDWICH_NORMS.items():
            own |= prefixed(ours, norm_sources(norm, layer + theirs))
        sources |= prefixed(f"layers.{number}", own)
    return decoder_spec(
        view,
        layout,
        "gemma3n_text",
        layers,
        sources,
        norm,
        ignored=(ROTARY_BUFFERS, OTHER_PARTS, unused_projections(layout, shared), *_unused_scales(altup)),
        embedding_multiplier=math.sqrt(layout.hidden_size),
        logits_softcap=read_softcap(view, "final_logit_softcapping", 30.0),
        layer_inputs=inputs,
        streams=StreamsSpec(altup.num_streams),
    )


def _altup(view: CheckpointView, layer: str, norm: NormSpec) -> AltUpSpec:
    """What is around the mixers of every layer; sizes from the shapes of one.

    Raises:
        CorruptCheckpoint: There is one stream only, or the active one isn't among them.
    """
    count = matrix_shape(view.tensors, f"{layer}altup.modality_router.weight")[0]
    rank = matrix_shape(view.tensors, f"{layer}laurel.linear_left.weight")[0]
    check_size(view, count, f"rows of {layer}altup.modality_router.weight", "altup_num_inputs")
    check_size(view, rank, f"rows of {layer}laurel.linear_left.weight", "laurel_rank")
    active = view.config.integer("altup_active_idx", default=0, low=0)
    if active >= count or count < 2:
        raise CorruptCheckpoint(
            f"config.json: altup_active_idx is {active}, but there are {count} streams; at least two are needed, and "
            "it must be below their number.",
            param="altup_active_idx",
        )
    return AltUpSpec(count, active, rank, norm, view.config.boolean("altup_correct_scale", default=True))


def _altup_sources(spec: AltUpSpec, layer: str) -> dict[str, Source]:
    sources = {ours: tensor(layer + theirs) for ours, theirs in ALTUP_NAMES.items()}
    sources |= prefixed("router_norm", norm_sources(spec.norm, f"{layer}altup.router_norm"))
    sources |= prefixed("laurel_norm", norm_sources(spec.norm, f"{layer}laurel.post_laurel_norm"))
    if spec.has_output_scale:
        sources["output_scale"] = tensor(f"{layer}altup.correct_output_scale")
    return sources


def _stream_sources(spec: AltUpSpec, prefix: str) -> dict[str, Source]:
    names = {"enter": "altup_projections", "leave": "altup_unembed_projections"}
    return {
        f"streams.{ours}": Source((Piece(f"{prefix}{theirs}.{{e}}.weight"),), spec.num_streams - 1)
        for ours, theirs in names.items()
    }


def _unused_scales(spec: AltUpSpec) -> Sequence[IgnoredTensors]:
    if spec.has_output_scale:
        return ()
    return (IgnoredTensors(re.compile(r"\.altup\.correct_output_scale$"), "altup_correct_scale is off"),)


def _mlp(view: CheckpointView, layer: str, act: str, number: int, count: int) -> MLPSpec:
    """The MLP of a layer, whose width and share of cut gates config.json may give layer by layer.

    Raises:
        CorruptCheckpoint: A list has another length than there are layers, or a share isn't from 0 to below 1.
    """
    config = view.config
    widths = config.get("intermediate_size")
    if isinstance(widths, list):
        view = view.changed(intermediate_size=_entry(widths, number, count, "intermediate_size"))
    shares = config.get(SPARSITY_KEY)
    share: Any
    if shares is None:
        share = SPARSITY if count > NUM_SPARSE and number < NUM_SPARSE else 0.0
    else:
        share = _entry(shares if isinstance(shares, list) else [shares] * count, number, count, SPARSITY_KEY)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise CorruptCheckpoint(
            f"config.json: {SPARSITY_KEY} has {str(share)[:60]!r} for layer {number}; shares are from 0 to below 1.",
            param=SPARSITY_KEY,
        )
    return replace(mlp_spec(view, layer, act), gate_sparsity=float(share))


def _entry(values: list[Any], number: int, count: int, key: str) -> Any:
    if len(values) != count:
        raise CorruptCheckpoint(f"config.json: {key} has {len(values)} entries for {count} layers.", param=key)
    return values[number]
