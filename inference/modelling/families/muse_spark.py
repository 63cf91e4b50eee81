"""Muse Spark, its text model: Muse Glimmer's with experts of a narrower space, and gates between stream and mixers.

Source: https://huggingface.co/meta-models/Muse-Spark-Open-816B-A42B, and transformers' ``muse_spark``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer, LayerNames
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.config_key_tables import Table, harmless, used
from inference.modelling.families.config_values import activation, check_size, number_with_evidence, rms_norm
from inference.modelling.families.decoder import norm_sources
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.moe_config import check_dense_layers, routed_experts
from inference.modelling.families.muse_glimmer import MUSE, decoder_options, layer_norms
from inference.modelling.families.prediction_head import HeadLayer
from inference.modelling.families.text_part import around, text_part
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import tensor

NAMES = LayerNames(
    norms={
        "token_norm": "input_layernorm",
        "channel_norm": "pre_feedforward_layernorm",
        "channel_post_norm": "post_feedforward_layernorm",
    }
)
"""The norm behind the attention has no weights."""
GATES = {"token_residual": "post_attention_residual_gate", "channel_residual": "post_feedforward_residual_gate"}
TEXT: Table = {
    **MUSE,
    **used(
        "hidden_act", "moe_intermediate_size", "num_local_experts", "num_experts_per_tok", "routed_scaling_factor",
        "moe_hidden_size", "mlp_layer_types", "residual_gate_temperature",
    ),
}  # fmt: skip
CONFIG_KEYS: Mapping[str, Table] = {
    "muse_spark_text": TEXT,
    "muse_spark": {**around(TEXT), **harmless("pictures aren't read", "out_hidden_size")},
}

# transformers' defaults.
CONTEXT = 1048576
THETA = 500_000.0
HEAD_DIM = 64
FACTOR = 5.4730064863875
MULTIPLIER = 0.1767766952966369
TOP_K_EPS = 1e-15


def build_spec(view: CheckpointView) -> ModelSpec:
    view = text_part(view)
    decoder = AttentionDecoder.read(view, NAMES, default_head_dim=HEAD_DIM, default_max_position_embeddings=CONTEXT)
    layout, norm, act = decoder.layout, rms_norm(view, default=1e-5), activation(view)
    _check_kinds(view, decoder)
    own = layer_norms(view, norm)
    own["token_post_norm"] = replace(own["token_post_norm"], weightless=True)
    own["channel_post_norm"] = replace(own["channel_post_norm"], scales_input=True)
    temperature = number_with_evidence(
        view, "residual_gate_temperature", ("residual_gate_temperature",), 0.3, low=1e-6, high=1e6
    )
    options = decoder_options(view, decoder, norm, theta=THETA, factor=FACTOR, multiplier=MULTIPLIER)
    options["attention_options"]["heads_norm"] = options["qk_norm_spec"]

    def adapt(number: int, layer: HeadLayer) -> HeadLayer:
        spec, sources = layer
        gates = {f"{ours}.gate": tensor(f"{layout.layer(number)}{theirs}.gate") for ours, theirs in GATES.items()}
        return replace(spec, **own, residual_temperature=temperature), {**sources, **gates}

    return decoder.spec(
        "muse_spark_text",
        norm=norm,
        act=act,
        adapt=adapt,
        experts=lambda layer: _experts(
            view,
            f"{layer}mlp.",
            act,
            router_multiplier=options["logits_multiplier"],
            latent_norm=own["channel_norm"],
            expert_norm=own["channel_post_norm"],
        ),
        **options,
    )


def _check_kinds(view: CheckpointView, decoder: AttentionDecoder) -> None:
    """Compare the layers with experts with those of config.json, by default all.

    Raises:
        CorruptCheckpoint: ``mlp_layer_types`` doesn't have an entry for each layer.
        TensorShapeMismatch: They differ.
    """
    count = decoder.layout.num_layers
    kinds = view.config.strings("mlp_layer_types") or ("sparse",) * count
    if len(kinds) != count:
        raise CorruptCheckpoint(
            f"config.json: mlp_layer_types has {len(kinds)} entries for {count} layers.", param="mlp_layer_types"
        )
    check_dense_layers(view, decoder.layout, "mlp_layer_types", lambda number: kinds[number] == "sparse")


def _experts(
    view: CheckpointView, base: str, act: str, *, latent_norm: NormSpec, expert_norm: NormSpec, **options: Any
) -> ChannelMixer:
    """The experts under ``base``, which work in a narrower space, and the sources of their parameters.

    Args:
        latent_norm: Norm of what they read.
        expert_norm: Norm of what each of them gives.
    """
    name = f"{base}pre_expert_proj.weight"
    latent_size = matrix_shape(view.tensors, name)[0]
    check_size(view, latent_size, f"rows of {name}", "moe_hidden_size")
    spec, sources = routed_experts(
        view,
        base,
        act,
        top_k=8,
        correction_bias="gate.e_score_correction_bias",
        needs_bias=True,
        scoring="sigmoid",
        normalise_eps=TOP_K_EPS,
        routed_scaling_factor=number_with_evidence(
            view, "moe.routed_scaling_factor", ("routed_scaling_factor",), 1.0, low=1e-6, high=1e6
        ),
        latent_size=latent_size,
        latent_norm=latent_norm,
        expert_norm=expert_norm,
        **options,
    )
    sources |= {
        "latent_down_proj.weight": tensor(name),
        "latent_up_proj.weight": tensor(f"{base}post_expert_proj.weight"),
    }
    sources |= prefixed("latent_norm", norm_sources(latent_norm, f"{base}pre_expert_norm"))
    return spec, sources | prefixed("experts.output_norm", norm_sources(expert_norm, f"{base}experts.post_expert_norm"))
