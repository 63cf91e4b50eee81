"""GLM 4.5, dots.llm1, EXAONE MoE, Solar Open, Hunyuan 3: variants of Llama's attention, experts of DeepSeek-V3's kind.

Source: https://arxiv.org/abs/2508.06471, https://arxiv.org/abs/2506.05767, and transformers' ``glm4_moe``, ``dots1``,
``exaone_moe``, ``solar_open`` and ``hy_v3``.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.modelling.families.attention_decoder import AttentionDecoder, ChannelMixer
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.config_key_tables import LLAMA_LIKE, MROPE, QKV_BIAS, WITH_ROPE, Table, harmless, used
from inference.modelling.families.config_keys import Harmless, Only
from inference.modelling.families.config_values import activation, check_size, number_with_evidence, rms_norm
from inference.modelling.families.decoder import drafting_layers
from inference.modelling.families.exaone4 import exaone_types
from inference.modelling.families.grouped_moe import GROUPED_MOE, grouped_moe
from inference.modelling.families.moe_config import check_dense_layers, check_layer_kinds, moe_sources, routed_experts
from inference.modelling.families.windows import TYPES, layer_types, sliding_window, window_of_each_layer
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import RopeSpec

EPS = {"dots1": 1e-6}
SHARES = {"glm4_moe": 0.5, "solar_open": 1.0}
THETAS = {"solar_open": 1_000_000.0, "hy_v3": 11_158_840.0}
KEYS: Table = {**WITH_ROPE, **GROUPED_MOE}
CONFIG_KEYS: Mapping[str, Table] = {
    "glm4_moe": {**KEYS, **MROPE, **used("use_qk_norm", "num_nextn_predict_layers"), "attention_bias": QKV_BIAS},
    "dots1": {
        **KEYS,
        **used("sliding_window", "layer_types", "max_window_layers"),
        "use_sliding_window": Harmless("transformers doesn't read it"),
        "use_qk_norm": Only((True,), "queries and keys are normed"),
        "scoring_func": Only(("noaux_tc", "sigmoid"), "scores are sigmoids"),
        "topk_method": Only(("noaux_tc",), "experts are chosen with a bias"),
        "moe_layer_freq": Only((1,), "all layers behind the dense ones have experts"),
    },
    "exaone_moe": {
        **{key: rule for key, rule in KEYS.items() if key not in ("attention_bias", "n_shared_experts")},
        **used("num_shared_experts", "mlp_layer_types", "sliding_window", "sliding_window_pattern", "layer_types"),
        **used("num_nextn_predict_layers"),
        **harmless("the tensors show which layers have experts", "is_moe_layer", "first_last_k_dense_replace"),
        "scoring_func": Only(("sigmoid",), "scores are sigmoids"),
        "topk_method": Only(("noaux_tc",), "experts are chosen with a bias"),
    },
    "hy_v3": {
        **LLAMA_LIKE,
        **used(
            "num_experts",
            "num_local_experts",
            "num_experts_per_tok",
            "num_shared_experts",
            "moe_intermediate_size",
            "router_scaling_factor",
            "mlp_layer_types",
            "num_nextn_predict_layers",
        ),
        "enable_moe_fp32_combine": Harmless("up to rounding"),
    },
    "solar_open": {
        **{key: rule for key, rule in KEYS.items() if key != "first_k_dense_replace"},
        "attention_bias": QKV_BIAS,
        "intermediate_size": Harmless("all layers have experts"),
        "use_qk_norm": Only((False,), "queries and keys aren't normed"),
        "first_k_dense_replace": Harmless("all layers have experts"),
    },
}


def build_spec(view: CheckpointView) -> ModelSpec:
    model_type = view.config.string("model_type", default="glm4_moe")
    prediction = view.config.integer(
        "num_nextn_predict_layers", default=int(model_type in ("glm4_moe", "hy_v3")), low=0, high=MAX_LAYERS
    )
    decoder = AttentionDecoder.read(view, prediction_layers=prediction)
    act = activation(view)
    _check_dense(decoder, model_type)

    def experts(layer: str) -> ChannelMixer:
        if model_type == "hy_v3":
            return _hunyuan_experts(view, layer, act)
        is_exaone = model_type == "exaone_moe"
        shared = "num_shared_experts" if is_exaone else "n_shared_experts"
        factor = 2.5 if is_exaone else 1.0
        normalises = model_type != "dots1"
        spec = grouped_moe(view, layer, act, shared_key=shared, factor=factor, normalises=normalises)
        at_router = f"{layer}mlp.gate.e_score_correction_bias" in view.tensors
        bias = None if at_router else "e_score_correction_bias"
        return spec, moe_sources(view, spec, f"{layer}mlp.", shared="shared_experts.", correction_bias=bias)

    windows, ropes = _windows_and_ropes(decoder, model_type)
    has_qk_norm = model_type in ("dots1", "exaone_moe", "hy_v3") or view.config.boolean("use_qk_norm", default=False)
    return decoder.spec(
        model_type,
        norm=rms_norm(view, default=EPS.get(model_type, 1e-5)),
        ropes=ropes,
        windows=windows,
        qk_norm="head" if has_qk_norm else None,
        act=act,
        experts=experts,
        router="mlp.router.gate.weight" if model_type == "hy_v3" else "mlp.gate.weight",
        ignored=drafting_layers(decoder.layout),
        reads_head=model_type == "glm4_moe",
    )


def _windows_and_ropes(
    decoder: AttentionDecoder, model_type: str
) -> tuple[tuple[int | None, ...], list[RopeSpec | None]]:
    view, count = decoder.view, decoder.layout.num_layers
    rope = decoder.rope(default_theta=THETAS.get(model_type, 10_000.0), default_partial=SHARES.get(model_type))
    if model_type not in ("dots1", "exaone_moe"):
        return (None,) * count, [rope] * count
    window = sliding_window(view, default=4096)
    types = layer_types(view, count, TYPES)
    if model_type == "exaone_moe":
        types = types or exaone_types(view, count, window)
        ropes = [rope if window is None or kind == TYPES[0] else None for kind in types]
        return window_of_each_layer(types, window), ropes
    full = view.config.integer("max_window_layers", default=62, low=0)
    default = tuple(TYPES[number < full] for number in range(count))
    return window_of_each_layer(types or default, window), [rope] * count


def _hunyuan_experts(view: CheckpointView, layer: str, act: str) -> ChannelMixer:
    """Experts of the same kind under other names, without groups."""
    base = f"{layer}mlp."
    factor = number_with_evidence(
        view, "moe.routed_scaling_factor", ("router_scaling_factor",), 2.826, low=1e-6, high=1e6
    )
    spec, sources = routed_experts(
        view,
        base,
        act,
        top_k=8,
        router="router.gate",
        shared="shared_mlp.",
        correction_bias="expert_bias",
        scoring="sigmoid",
        normalise_eps=1e-20,
        routed_scaling_factor=factor,
    )
    shared = spec.shared_intermediate_size // spec.intermediate_size
    check_size(view, shared, f"width of {base}shared_mlp by that of an expert", "num_shared_experts")
    return spec, sources


def _check_dense(decoder: AttentionDecoder, model_type: str) -> None:
    """Compare the layers without experts with those that config.json states."""
    view, layout = decoder.view, decoder.layout
    if model_type in ("hy_v3", "exaone_moe"):
        check_layer_kinds(view, layout, router="mlp.router.gate" if model_type == "hy_v3" else "mlp.gate")
    if model_type == "exaone_moe" and "mlp_layer_types" in view.config:
        return
    if model_type not in ("solar_open", "hy_v3") and "first_k_dense_replace" in view.config:
        first = view.config.integer("first_k_dense_replace", low=0)
        check_dense_layers(view, layout, "first_k_dense_replace", lambda number: number >= first)
