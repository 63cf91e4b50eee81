"""Nemotron-H: one mixer per layer: Mamba-2, attention without positions, ungated MLP, or experts.

The files call each of them ``mixer``; the tensor names of a layer show its kind. Δ is kept within ``time_step_limit``,
as in the published code; transformers 5 raises it to ``time_step_min``, from which training only draws start values.

Source: https://arxiv.org/abs/2504.03624 and the Nemotron 3 report; transformers' ``nemotron_h``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import UnsupportedArchitecture
from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.config import MAX_LAYERS, CheckpointView, Confidence
from inference.modelling.families.config_key_tables import COMMON, HEADS, NO_ROPE, NO_WINDOW, Table, harmless, used
from inference.modelling.families.config_keys import Biases
from inference.modelling.families.config_values import (
    activation,
    check_size,
    integer_with_evidence,
    number_with_evidence,
    rms_norm,
)
from inference.modelling.families.decoder import decoder_spec, read_layers
from inference.modelling.families.decoder_layout import read_layout
from inference.modelling.families.head_sizes import read_heads
from inference.modelling.families.headers import matrix_shape
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import (
    check_experts,
    check_routing,
    count_experts,
    moe_sources,
    shared_width,
)
from inference.modelling.families.prediction_head import HeadLayer, HeadNames, prediction_head
from inference.modelling.families.state_space import (
    Mamba2Keys,
    check_layer_kinds,
    mamba2_sources,
    mamba2_spec,
    stated_layer_types,
    time_step_limits,
    unknown_layer,
)
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import ChannelMixerSpec, MoESpec, TokenMixerSpec
from inference.modelling.specs.parts import NormSpec, prefixed
from inference.modelling.specs.sources import tensor

NEMOTRON: Table = {
    **COMMON,
    **HEADS,
    **NO_ROPE,
    **used(
        "num_local_experts", "num_experts_per_tok", "attention_head_dim",
        "intermediate_size", "layer_norm_epsilon", "rms_norm_eps", "mlp_hidden_act",
        "mamba_hidden_act", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "mamba_n_groups",
        "conv_kernel", "mamba_d_conv", "time_step_limit", "mamba_dt_limit", "hybrid_override_pattern",
        "layers_block_type", "layer_types", "n_routed_experts", "moe_intermediate_size",
        "moe_shared_expert_intermediate_size", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
        "moe_latent_size",
    ),
    **harmless(
        "start values of a training", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank",
        "mamba_dt_min", "mamba_dt_max", "mamba_dt_init_floor",
    ),
    **harmless("the shapes say it", "expand", "mamba_expand", "num_query_groups", "n_shared_experts"),
    **harmless("the tensors of the layers for drafting say it", "num_nextn_predict_layers", "mtp_layers_block_type",
                "mtp_hybrid_override_pattern"),
    **harmless("which kernel computes it, and when", "use_mamba_kernels", "chunk_size", "mamba_chunk_size",
                "mamba_ssm_cache_dtype", "moe_shared_expert_overlap"),
    **harmless("transformers doesn't read it", "attention_bias", "mamba_proj_bias", "norm_eps"),
    **harmless("other names beside n_groups and ssm_state_size", "mamba_num_groups", "mamba_state_dim"),
    "sliding_window": NO_WINDOW,
    "mlp_bias": Biases(r"mixer\.(?:up|down)_proj"),
    "use_bias": Biases(r"mixer\.(?:in|out)_proj"),
    "use_conv_bias": Biases(r"mixer\.conv1d"),
}  # fmt: skip

CONFIG_KEYS: Mapping[str, Table] = {
    "nemotron_h": NEMOTRON,
}  # fmt: skip

KEYS = Mamba2Keys(
    ("mamba_num_heads",),
    ("mamba_head_dim",),
    ("ssm_state_size",),
    ("mamba_n_groups", "n_groups"),
    ("mamba_d_conv", "conv_kernel"),
    8,
)
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""


def build_spec(view: CheckpointView) -> ModelSpec:
    layout = read_layout(view, prefixes=("backbone.", "model."), embeddings=("embeddings.weight",))
    norm = rms_norm(view, "layer_norm_epsilon", "rms_norm_eps", default=1e-5)
    mlp_act = activation(view, "mlp_hidden_act", default="relu2")
    mamba_act = activation(view, "mamba_hidden_act")
    limits = time_step_limits(view, "time_step_limit", "mamba_dt_limit")

    def read_layer(layer: str) -> HeadLayer:
        base = f"{layer}mixer."
        token: TokenMixerSpec | None = None
        channel: ChannelMixerSpec | None = None
        if f"{base}A_log" in view.tensors:
            token = mamba2_spec(view, base, KEYS, activation=mamba_act, norm_eps=norm.eps, limits=limits)
            found = mamba2_sources(token, base, layout.hidden_size)
        elif f"{base}q_proj.weight" in view.tensors:
            heads = read_heads(view, layer, attention="mixer.")
            check_size(view, heads.head_dim, "width of a head", "attention_head_dim")
            token = attention_spec(view, layer, heads, None, attention="mixer.")
            found = attention_sources(view, token, layer, attention="mixer.")
        elif f"{base}gate.weight" in view.tensors:
            channel = _moe_spec(view, layer, mlp_act)
            found = moe_sources(view, channel, base, shared="shared_experts.")
            if channel.latent_size:
                found |= {
                    "latent_down_proj.weight": tensor(f"{base}fc1_latent_proj.weight"),
                    "latent_up_proj.weight": tensor(f"{base}fc2_latent_proj.weight"),
                }
        elif f"{base}up_proj.weight" in view.tensors:
            channel = mlp_spec(view, layer, mlp_act, mlp="mixer.", gated=False)
            found = mlp_sources(view, channel, layer, mlp="mixer.")
        else:
            raise unknown_layer(layer, "mixer.A_log, mixer.q_proj.weight, mixer.gate.weight, mixer.up_proj.weight")
        kind = "token" if token is not None else "channel"
        sources = {f"{kind}_norm.weight": tensor(f"{layer}norm.weight"), **prefixed(f"{kind}_mixer", found)}
        return _layer(token, channel, norm), sources

    layers, sources = read_layers(layout.num_layers, lambda number: read_layer(layout.layer(number)))
    check_layer_kinds("hybrid_override_pattern or layers_block_type", _stated_kinds(view), layers)
    names, last = _head_names(view)
    head = prediction_head(
        view,
        layout,
        names,
        norm,
        lambda: [_head_layer(read_layer(f"mtp.layers.{number}.")) for number in range(last + 1)],
        feeds_normed_rows=True,
    )
    return decoder_spec(
        view,
        layout,
        "nemotron_h",
        layers,
        sources,
        norm,
        final_norm_name="norm_f",
        prediction_head=head,
    )


def _head_names(view: CheckpointView) -> tuple[HeadNames | None, int]:
    """What is around the layers of the head, and the number of its last layer, which has the final norm."""
    last = next((at for at in range(MAX_LAYERS) if f"mtp.layers.{at}.final_layernorm.weight" in view.tensors), None)
    if last is None:
        return None, 0
    first = "mtp.layers.0."
    final = f"mtp.layers.{last}.final_layernorm"
    return HeadNames(f"{first}eh_proj.weight", f"{first}enorm", f"{first}hnorm", final), last


def _head_layer(layer: HeadLayer) -> HeadLayer:
    """A layer of the head.

    Raises:
        UnsupportedArchitecture: It is recurrent, and drafting advances no recurrent states.
    """
    if any(part.per == "sequence" for part in layer[0].state()):
        raise UnsupportedArchitecture("it has a recurrent layer, which can't be rolled back there.", param="mtp")
    return layer


def _layer(token: TokenMixerSpec | None, channel: ChannelMixerSpec | None, norm: NormSpec) -> LayerSpec:
    if token is not None:
        return LayerSpec(token_mixer=token, token_norm=norm)
    return LayerSpec(channel_mixer=channel, channel_norm=norm)


def _stated_kinds(view: CheckpointView) -> tuple[str, ...] | None:
    """Kinds by ``hybrid_override_pattern`` (the published files) or ``layers_block_type`` (transformers 5)."""
    if "layers_block_type" in view.config or "layer_types" in view.config:
        return stated_layer_types(view, "layers_block_type", "layer_types")
    if "hybrid_override_pattern" not in view.config:
        return None
    pattern = view.config.string("hybrid_override_pattern")
    for letter in pattern:
        if letter not in PATTERN:
            raise UnsupportedArchitecture(
                f"config.json: hybrid_override_pattern has {letter!r}; known are {', '.join(PATTERN)}.",
                param="hybrid_override_pattern",
            )
    return tuple(PATTERN[letter] for letter in pattern)


def _moe_spec(view: CheckpointView, layer: str, act: str) -> MoESpec:
    """Ungated experts chosen by sigmoid scores with a correction bias, group-limited as in DeepSeek-V3.

    The routed ones may work in a narrower space, between two projections (Nemotron 3 Super).
    """
    config, base = view.config, f"{layer}mixer."
    bias, latent = f"{base}shared_experts.up_proj.bias", f"{base}fc1_latent_proj.weight"
    if bias in view.tensors:
        raise UnsupportedArchitecture(f"{bias} is not supported: experts with biases can't be served yet.", param=bias)
    latent_size = matrix_shape(view.tensors, latent)[0] if latent in view.tensors else 0
    check_size(view, latent_size, f"width of the experts' space under {base[:-1]}", "moe_latent_size")
    count, width = count_experts(view, f"{base}experts.")
    check_experts(
        view, f"{base}experts.", count, width, ("n_routed_experts", "num_local_experts"), "moe_intermediate_size"
    )
    width_of_shared = shared_width(view, f"{base}shared_experts.")
    check_size(view, width_of_shared, f"width of {base}shared_experts", "moe_shared_expert_intermediate_size")
    groups = integer_with_evidence(view, "moe.num_expert_groups", ("n_group",), 1)
    normalise = config.boolean("norm_topk_prob", default=True)
    view.facts.add(
        "moe.normalise_top_k",
        normalise,
        "norm_topk_prob of config.json, or the family's default",
        Confidence.CERTAIN if "norm_topk_prob" in config else Confidence.LOW,
    )
    return check_routing(
        MoESpec(
            num_experts=count,
            top_k=integer_with_evidence(view, "moe.top_k", ("num_experts_per_tok",), 2),
            intermediate_size=width,
            activation=act,
            gated=False,
            scoring="sigmoid",
            normalise_top_k=normalise,
            normalise_eps=1e-20,
            routed_scaling_factor=number_with_evidence(
                view, "moe.routed_scaling_factor", ("routed_scaling_factor",), 1.0, low=1e-6, high=1e6
            ),
            num_expert_groups=groups,
            top_k_groups=integer_with_evidence(view, "moe.top_k_groups", ("topk_group",), 1),
            group_score="top2",
            correction_bias=f"{base}gate.e_score_correction_bias" in view.tensors,
            shared_intermediate_size=width_of_shared,
            latent_size=latent_size,
        )
    )
