"""Muse Glimmer, its text model: AFMoE's gated attention between Gemma's norms, without positions in full layers.

Queries, keys and the embedding pass norms without weights, and logits a factor and a cap.
Source: https://huggingface.co/meta-models/Muse-Glimmer-30B, and transformers' ``muse_glimmer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import SANDWICH_NORMS, AttentionDecoder, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_values import activation, number_with_evidence, rms_norm
from inference.modelling.families.gemma2 import read_softcap
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.families.text_part import around, text_part
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec, RopeSpec

MUSE: Table = {
    **{key: rule for key, rule in WITH_ROPE.items() if key != "hidden_act"},
    **used(
        "sliding_window", "layer_types", "layer_rope_theta", "qk_scale_factor", "post_norm_eps", "output_multiplier",
        "final_logit_softcapping",
    ),
}  # fmt: skip
TEXT: Table = {**MUSE, **used("hidden_activation")}
CONFIG_KEYS: Mapping[str, Table] = {
    "muse_glimmer_text": TEXT,
    "muse_glimmer": {**around(TEXT), **harmless("pictures aren't read", "out_hidden_size")},
}

# transformers' defaults.
CONTEXT = 131072
THETA = 10_000.0
WINDOW = 2048
HEAD_DIM = 128
FULL_EVERY = 4
"""The last layer is full, and every one of so many before it."""


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    decoder = AttentionDecoder.read(
        view, LayerNames(norms=SANDWICH_NORMS), default_head_dim=HEAD_DIM, default_max_position_embeddings=CONTEXT
    )
    norm = rms_norm(view, default=1e-5)
    own = layer_norms(view, norm)
    return decoder.spec(
        "muse_glimmer_text",
        norm=norm,
        act=activation(view, "hidden_activation"),
        adapt=lambda _, layer: _with_norms(layer, own),
        **decoder_options(view, decoder, norm, theta=THETA, factor=3.87, multiplier=0.19611613513818404),
    )


def layer_norms(view: CheckpointView, norm: NormSpec) -> dict[str, Any]:
    """The norms of a layer: weights are stored around zero, and those behind the mixers have an ε of their own."""
    eps = number_with_evidence(view, "norm.post_eps", ("post_norm_eps",), 1e-8, low=0.0, high=1.0)
    inner = replace(norm, offset=1.0)
    post = replace(inner, eps=eps)
    return {"token_norm": inner, "token_post_norm": post, "channel_norm": inner, "channel_post_norm": post}


def decoder_options(
    view: CheckpointView, decoder: AttentionDecoder, norm: NormSpec, *, theta: float, factor: float, multiplier: float
) -> dict[str, Any]:
    """What Muse's models share, as arguments of ``AttentionDecoder.spec``.

    Args:
        norm: That with weights, as at the end.
        theta, factor, multiplier: Defaults of the rotation's base, ``qk_scale_factor`` and ``output_multiplier``.
    """
    count = decoder.layout.num_layers
    usual = tuple(TYPES[not (count - 1 - number) % FULL_EVERY] for number in range(count))
    types = layer_types(view, count, TYPES) or usual
    weightless = replace(norm, weightless=True)
    scale = number_with_evidence(view, "attention.qk_scale_factor", ("qk_scale_factor",), factor, low=1e-6, high=1e6)
    return {
        "ropes": _ropes(view, decoder.rope(default_theta=theta), usual),
        "windows": window_of_each_layer(types, sliding_window(view, default=WINDOW)),
        "qk_norm": "head",
        "qk_norm_spec": weightless,
        "attention_options": {"output_gate": True, "scale": scale * decoder.heads.head_dim**-0.5},
        "embedding_norm": weightless,
        "logits_multiplier": number_with_evidence(
            view, "logits_multiplier", ("output_multiplier",), multiplier, low=1e-6, high=1e6
        ),
        "logits_softcap": read_softcap(view, "final_logit_softcapping", 20.0),
    }


def _with_norms(layer: HeadLayer, norms: Mapping[str, Any]) -> HeadLayer:
    spec, sources = layer
    return replace(spec, **norms), sources


def _ropes(view: CheckpointView, rope: RopeSpec, usual: tuple[str, ...]) -> list[RopeSpec | None]:
    """The rotation of each layer, by ``layer_rope_theta``: its base, or 0 for none.

    Args:
        usual: The layers' types where config.json doesn't state them; full ones have no positions where it has no
            ``layer_rope_theta``.

    Raises:
        CorruptCheckpoint: It has another number of entries, or a base that isn't that of ``rope_parameters``, which
            transformers takes for all layers.
    """
    stated = view.config.numbers("layer_rope_theta")
    if "layer_rope_theta" not in view.config:
        return [rope if kind == TYPES[0] else None for kind in usual]
    if len(stated) != len(usual):
        raise CorruptCheckpoint(
            f"config.json: layer_rope_theta has {len(stated)} entries for {len(usual)} layers.",
            param="layer_rope_theta",
        )
    other = next((theta for theta in stated if theta not in (0.0, rope.theta)), None)
    if other is not None:
        raise CorruptCheckpoint(
            f"config.json: layer_rope_theta has {other:g}, rope_parameters {rope.theta:g}; programs differ in which "
            "they take. Write the base that the model was trained with into both.",
            param="layer_rope_theta",
        )
    return [rope if theta else None for theta in stated]
