"""Granite 3, dense and with experts, and HyperCLOVA X SEED Think: Llama with multipliers, the latter with more norms.

The ``swa`` forms have windows, sinks, and a base of the rotation for each layer.

Source: https://arxiv.org/abs/2405.04324, and transformers' ``granite``,
``granitemoe``, ``granitemoeshared`` and ``hyperclovax``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import PRE_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, WITH_ROPE, Table, used
from inference.modelling.families.config_keys import Only
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.granite_experts import granite_mixer
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import RopeSpec

MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
SWA = ("sliding_window", "layer_types", "layer_rope_theta")
EXPERT_KEYS: Table = {
    **WITH_ROPE,
    **used(*MULTIPLIERS, "num_local_experts", "num_experts_per_tok"),
    "normalization_function": Only(("rmsnorm",), "the norms are RMS norms"),
}
CONFIG_KEYS: Mapping[str, Table] = {
    "granite": {**LLAMA_LIKE, **used(*MULTIPLIERS)},
    "granitemoe": EXPERT_KEYS,
    "granitemoeshared": {**EXPERT_KEYS, **used("shared_intermediate_size")},
    "granite_swa": {**LLAMA_LIKE, **used(*MULTIPLIERS, *SWA)},
    "granitemoe_swa": {**EXPERT_KEYS, **used("shared_intermediate_size", *SWA)},
    "hyperclovax": {**LLAMA_LIKE, **used(*MULTIPLIERS, "use_post_norm")},
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="granite")
    is_granite = model_type != "hyperclovax"
    act = activation(view)
    norms = PRE_NORMS
    if not is_granite and view.config.boolean("use_post_norm", default=True):
        norms = {**PRE_NORMS, "token_post_norm": "post_norm1", "channel_post_norm": "post_norm2"}
    has_windows = model_type.endswith("_swa")
    context = 8192 if has_windows else 2048
    decoder = AttentionDecoder.read(
        view, LayerNames(norms=norms), tied_by_default=has_windows, default_max_position_embeddings=context
    )
    scale = _multiplier(view, "attention_multiplier", 1.0 if is_granite else decoder.heads.head_dim**-0.5)
    logits = _multiplier(view, "logits_scaling", 1.0)
    return decoder.spec(
        model_type,
        norm=rms_norm(view, default=1e-5 if has_windows else 1e-6),
        ropes=_ropes(decoder),
        windows=_windows(decoder) if has_windows else None,
        attention_options={"scale": scale, "has_sinks": has_windows},
        act=act,
        experts=(lambda layer: granite_mixer(view, layer, act)) if model_type.startswith("granitemoe") else None,
        router="",
        residual_multiplier=_multiplier(view, "residual_multiplier", 1.0),
        embedding_multiplier=_multiplier(view, "embedding_multiplier", 1.0),
        logits_multiplier=1.0 / logits if is_granite else logits,
    )


def _multiplier(view: CheckpointView, key: str, default: float) -> float:
    return number_with_evidence(view, key, (key,), default, low=1e-9, high=1e9)


def _windows(decoder: AttentionDecoder) -> tuple[int | None, ...]:
    count = decoder.layout.num_layers
    types = layer_types(decoder.view, count, TYPES) or tuple(TYPES[number % 4 == 0] for number in range(count))
    return window_of_each_layer(types, sliding_window(decoder.view, default=128))


def _ropes(decoder: AttentionDecoder) -> list[RopeSpec | None]:
    """Each layer's rotation; a base of 0 means none.

    Raises:
        CorruptCheckpoint: Not a base for each layer, or a negative one.
    """
    rope, count = decoder.rope(), decoder.layout.num_layers
    bases = decoder.view.config.numbers("layer_rope_theta")
    if not bases:
        return [rope] * count
    if len(bases) != count or min(bases) < 0:
        raise CorruptCheckpoint(
            f"config.json: layer_rope_theta has {len(bases)} numbers, the least {min(bases):g}; one from 0 on is "
            f"needed for each of {count} layers.",
            param="layer_rope_theta",
        )
    return [replace(rope, theta=base) if base else None for base in bases]
