"""Kimi Linear and Ling 3 (``bailing_hybrid``): delta rules with a decay per channel, some layers latent attention.

Both have DeepSeek-V3's experts. Kimi's attention has no positions; Ling's is rotated, and each head's output gated.

Source: https://arxiv.org/abs/2510.26692, the published moonshotai/Kimi-Linear-48B-A3B files, and transformers'
``kimi_linear`` and ``bailing_hybrid``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inference.errors import CorruptCheckpoint, TensorShapeMismatch
from inference.modelling.families.checks import ROTARY_BUFFERS
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import COMMON, NO_ROPE, ROPE, Table, aliases, harmless, used
from inference.modelling.families.config_keys import Biases, Harmless, Members, Only
from inference.modelling.families.config_values import activation, rms_norm
from inference.modelling.families.decoder import decoder_spec, drafting_layers, llama_layer, llama_layer_sources
from inference.modelling.families.decoder_layout import DecoderLayout, read_layout
from inference.modelling.families.delta_config import LINEAR_SIZES, channel_delta_mixer
from inference.modelling.families.grouped_moe import grouped_moe
from inference.modelling.families.latent_attention import mla_sources, mla_spec
from inference.modelling.families.mlp_config import mlp_sources, mlp_spec
from inference.modelling.families.moe_config import (
    USUAL_NAMES,
    ExpertNames,
    check_dense_layers,
    has_router,
    moe_sources,
)
from inference.modelling.families.state_space import (
    check_layer_kinds,
    stated_layer_types,
    unknown_layer,
)
from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.layers import ChannelMixerSpec, TokenMixerSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sources import Source, tensor

KIMI: Table = {
    **COMMON,
    **used(
        "num_attention_heads", "intermediate_size", "rms_norm_eps", "kv_lora_rank", "qk_nope_head_dim",
        "qk_rope_head_dim", "qk_head_dim", "v_head_dim", "model_max_length", "layer_types", "mlp_layer_types",
        "first_k_dense_replace", "num_experts", "num_experts_per_token", "num_shared_experts",
        "moe_intermediate_size", "num_expert_group", "topk_group", "moe_renormalize", "routed_scaling_factor",
        "num_nextn_predict_layers",
    ),
    **aliases("num_experts_per_token", "num_experts_per_tok"),
    **LINEAR_SIZES,
    "hidden_act": Only(("silu",), "the convolutions have SiLU"),
    "num_key_value_heads": Harmless("latent attention has no key/value heads"),
    "use_grouped_topk": Only((True,), "experts are chosen by groups"),
    "moe_router_activation_func": Only(("sigmoid",), "scores are sigmoids"),
    "moe_layer_freq": Only((1,), "each layer behind the first ones has experts"),
}  # fmt: skip

CONFIG_KEYS: Mapping[str, Table] = {
    "kimi_linear": {
        **KIMI,
        **NO_ROPE,
        **used("q_lora_rank"),
        "head_dim": Harmless("qk_rope_head_dim, qk_nope_head_dim and v_head_dim say it"),
        "attention_bias": Biases(r"self_attn\.(?:q_a_proj|kv_a_proj_with_mqa)"),
        "mla_use_nope": Only((True,), "attention has no positions"),
        "linear_attn_config": Members(
            used("head_dim", "num_heads", "short_conv_kernel_size", "full_attn_layers", "kda_layers")
        ),
    },
    "bailing_hybrid": {
        **KIMI,
        **ROPE,
        **used("short_conv_kernel_size", "layer_group_size", "kda_safe_gate", "kda_lower_bound"),
        "head_dim": Harmless("the shapes say it; transformers writes the rotated width in its place"),
        "attention_bias": Biases(r"attention\.kv_a_proj_with_mqa"),
        **harmless("training only", "mtp_loss_scaling_factor"),
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """What the files call the parts of a layer."""

    attention: str
    output: str
    experts: str
    expert_names: ExpertNames
    bias: str


NAMES = {
    "kimi_linear": Names(
        "self_attn.", "o_proj", "block_sparse_moe.", ExpertNames("w1", "w3", "w2"), "gate.e_score_correction_bias"
    ),
    "bailing_hybrid": Names("attention.", "dense", "mlp.", USUAL_NAMES, "gate.expert_bias"),
}
ROUTING = {"kimi_linear": (1, 1, 2.446), "bailing_hybrid": (8, 4, 2.5)}
"""Groups of experts, how many of them are chosen, and the factor of the result, where config.json has none."""


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="kimi_linear")
    names = NAMES[model_type]
    prediction = view.config.integer("num_nextn_predict_layers", default=1, low=0, high=MAX_LAYERS)
    layout = read_layout(
        view, embeddings=("embed_tokens.weight", "word_embeddings.weight"), prediction_layers=prediction
    )
    norm, act = rms_norm(view), activation(view)
    layers: list[LayerSpec] = []
    sources: dict[str, Source] = {}
    for number in range(layout.num_layers):
        layer = layout.layer(number)
        token, token_sources = _token_mixer(view, layout, f"{layer}{names.attention}", names, norm)
        channel, channel_sources = _channel_mixer(view, layer, names, act, ROUTING[model_type])
        layers.append(llama_layer(token, channel, norm))
        sources |= llama_layer_sources(number, layer, token_sources, channel_sources)
    _check_kinds(view, layers)
    _check_dense(view, layout, f"{names.experts}gate")
    ignored = (ROTARY_BUFFERS, *drafting_layers(layout))
    return decoder_spec(view, layout, model_type, layers, sources, norm, ignored=ignored)


def _check_kinds(view: CheckpointView, layers: Sequence[LayerSpec]) -> None:
    stated = stated_layer_types(view, "layer_types", linear="kimi_delta")
    if stated is not None:
        kinds = ["mla" if kind == "attention" else kind for kind in stated]
        check_layer_kinds("layer_types", kinds, layers)
    for key, kind in (("full_attn_layers", "mla"), ("kda_layers", "kimi_delta")):
        numbers = view.config.integers(f"linear_attn_config.{key}")  # from 1
        found = [number for number, layer in enumerate(layers, 1) if layer.kind.startswith(kind)]
        if numbers and sorted(numbers) != found:
            raise TensorShapeMismatch(
                f"config.json: linear_attn_config.{key} is {list(numbers)}, but the tensors have {found}; correct "
                "config.json.",
                param=f"linear_attn_config.{key}",
            )
    if "layer_group_size" in view.config:
        size = view.config.integer("layer_group_size")
        kinds = ["kimi_delta" if number % size else "mla" for number in range(1, len(layers) + 1)]
        check_layer_kinds("layer_group_size", kinds, layers)


def _check_dense(view: CheckpointView, layout: DecoderLayout, router: str) -> None:
    """Compare config.json's dense layers with those of the tensors.

    Raises:
        CorruptCheckpoint: ``mlp_layer_types`` has other words, or another number of them.
    """
    if "first_k_dense_replace" in view.config:
        first = view.config.integer("first_k_dense_replace", low=0)
        check_dense_layers(view, layout, "first_k_dense_replace", lambda number: number >= first, router=router)
    kinds = view.config.strings("mlp_layer_types")
    if kinds:
        if len(kinds) != layout.num_layers or not {"dense", "sparse"}.issuperset(kinds):
            raise CorruptCheckpoint(
                f"config.json: mlp_layer_types has {len(kinds)} entries; it must have dense or sparse for each of "
                f"{layout.num_layers} layers.",
                param="mlp_layer_types",
            )
        check_dense_layers(view, layout, "mlp_layer_types", lambda number: kinds[number] == "sparse", router=router)


def _token_mixer(
    view: CheckpointView, layout: DecoderLayout, base: str, names: Names, norm: NormSpec
) -> tuple[TokenMixerSpec, dict[str, Source]]:
    """The delta rule under ``base``, or the latent attention."""
    if f"{base}A_log" in view.tensors:
        return channel_delta_mixer(view, base, norm.eps, _least_log_decay(view, base), output=names.output)
    if f"{base}kv_a_proj_with_mqa.weight" not in view.tensors:
        raise unknown_layer(base, "A_log, kv_a_proj_with_mqa.weight")
    is_ling = f"{base}g_proj.weight" in view.tensors
    context, interleaved = layout.max_position_embeddings, True if is_ling else None
    spec = mla_spec(view, base, context, interleaved=interleaved, output=names.output)
    sources = mla_sources(spec, base, output=names.output)
    if is_ling:
        spec, sources["head_gate.weight"] = replace(spec, head_gate=True), tensor(f"{base}g_proj.weight")
    return spec, sources


def _least_log_decay(view: CheckpointView, base: str) -> float | None:
    """Ling's bound of the decays, whose gates are projected in one step."""
    if f"{base}f_a_proj.weight" in view.tensors or not view.config.boolean("kda_safe_gate", default=True):
        return None
    return view.config.number("kda_lower_bound", default=-5.0, low=-1000.0, high=-1e-3)


def _channel_mixer(
    view: CheckpointView, layer: str, names: Names, act: str, routing: tuple[int, int, float]
) -> tuple[ChannelMixerSpec, dict[str, Source]]:
    base = f"{layer}{names.experts}"
    if has_router(view, layer, f"{names.experts}gate"):
        groups, chosen, factor = routing
        spec = grouped_moe(
            view,
            layer,
            act,
            groups=groups,
            top_k_groups=chosen,
            factor=factor,
            shared_key="num_shared_experts",
            mlp=names.experts,
            down=names.expert_names.down,
            biases=(names.bias,),
        )
        return spec, moe_sources(
            view, spec, base, shared="shared_experts.", names=names.expert_names, correction_bias=names.bias
        )
    # transformers 5.23 saves a dense MLP under the name of experts.
    mlp = names.experts if f"{base}down_proj.weight" in view.tensors else "mlp."
    dense = mlp_spec(view, layer, act, mlp=mlp)
    return dense, mlp_sources(view, dense, layer, mlp=mlp)
