"""GLM-5.3: both namings, bounds of decays, choices of windows, streams, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.glm5_next import build_spec
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.compressed import CompressedIndexerSpec, CompressorSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import MLPSpec, MoESpec
from inference.modelling.specs.linear import KimiDeltaSpec
from inference.modelling.specs.parts import NormSpec
from inference.modelling.specs.sinkhorn_streams import MeanStreamsSpec, SinkhornStreamsSpec
from inference.modelling.specs.sources import Piece
from tests.inference.modelling.families.headers import HIDDEN, Shapes, fact, outer, view_of

LINEAR, INDEXED = "linear_attention", "indexed_attention"
CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "layer_types": [LINEAR, INDEXED, INDEXED],
    "mlp_layer_types": ["dense", "sparse", "dense"],
    "indexer_types": ["full", "full", "shared"], "hc_mult": 3, "intermediate_size": 24, "moe_intermediate_size": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "index_topk": 12, "index_kpool": 4,
    "q_lora_rank": 10, "kv_lora_rank": 6, "qk_nope_head_dim": 5, "qk_rope_head_dim": 0, "v_head_dim": 7,
    "index_head_dim": 9, "index_n_heads": 3, "linear_num_heads": 2, "linear_head_dim": 4, "linear_conv_kernel_dim": 4,
}  # fmt: skip


def delta(base: str, *, is_published: bool) -> Shapes:
    forget = base if is_published else f"{base}forget_gate."
    convs: Shapes = {f"{base}conv1d.weight": (24, 1, 4)}
    if is_published:
        convs = {f"{base}{name}_conv1d.weight": (8, 1, 4) for name in "qkv"}
    return {
        **{f"{base}{name}_proj.weight": (8, HIDDEN) for name in "qkv"},
        **convs,
        f"{forget}f_a_proj.weight": (4, HIDDEN), f"{forget}f_b_proj.weight": (8, 4), f"{forget}dt_bias": (8,),
        f"{forget}A_log": (2,), f"{base}b_proj.weight": (2, HIDDEN), f"{base}g_a_proj.weight": (4, HIDDEN),
        f"{base}g_b_proj.weight": (8, 4), f"{base}o_norm.weight": (4,), f"{base}o_proj.weight": (HIDDEN, 8),
    }  # fmt: skip


def latent(base: str, *, has_indexer: bool) -> Shapes:
    found: Shapes = {
        f"{base}q_a_proj.weight": (10, HIDDEN), f"{base}q_a_layernorm.weight": (10,),
        f"{base}q_b_proj.weight": (20, 10), f"{base}kv_a_proj_with_mqa.weight": (6, HIDDEN),
        f"{base}kv_a_layernorm.weight": (6,), f"{base}kv_b_proj.weight": (48, 6), f"{base}o_proj.weight": (HIDDEN, 28),
    }  # fmt: skip
    if not has_indexer:
        return found
    index = f"{base}indexer."
    return found | {
        f"{index}wq_b.weight": (27, 10), f"{index}wk.weight": (9, HIDDEN), f"{index}k_norm.weight": (9,),
        f"{index}k_norm.bias": (9,), f"{index}weights_proj.weight": (3, HIDDEN),
        f"{index}index_kpool_compress_ape": (4, 9), f"{index}index_kpool_compress_gate": (9, HIDDEN),
    }  # fmt: skip


def channel(base: str, *, is_sparse: bool) -> Shapes:
    dense: Shapes = {f"{base}mlp.{name}_proj.weight": (24, HIDDEN) for name in ("gate", "up")}
    if not is_sparse:
        return dense | {f"{base}mlp.down_proj.weight": (HIDDEN, 24)}
    experts = {
        f"{base}mlp.{part}.{name}_proj.weight": (HIDDEN, 8) if name == "down" else (8, HIDDEN)
        for part in ("shared_experts", *(f"experts.{number}" for number in range(4)))
        for name in ("gate", "up", "down")
    }
    return experts | {f"{base}mlp.gate.weight": (4, HIDDEN), f"{base}mlp.gate.e_score_correction_bias": (4,)}


def shapes(*, is_published: bool = True) -> Shapes:
    found = outer()
    for number in range(3):
        base = f"model.layers.{number}."
        found |= {f"{base}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        mixer = f"{base}self_attn."
        found |= latent(mixer, has_indexer=number == 1) if number else delta(mixer, is_published=is_published)
        found |= channel(base, is_sparse=number == 1)
        for part in ("attn", "ffn"):
            stem = f"{base}hc_{part}_" if is_published else f"{base}{part}_hc."
            found |= {f"{stem}fn": (15, 3 * HIDDEN), f"{stem}base": (15,), f"{stem}scale": (3,)}
    return found


def mixers(spec: ModelSpec) -> list[Any]:
    return [layer.token_mixer for layer in spec.layers]


@pytest.mark.parametrize("is_published", [True, False])
def test_layers_are_delta_rules_or_attention_without_positions(is_published: bool) -> None:
    spec = build_spec(view_of(shapes(is_published=is_published), CONFIG | {"rms_norm_eps": 1e-4}))
    norm = NormSpec("rms", 1e-4)
    first, second, third = mixers(spec)
    assert first == KimiDeltaSpec(2, 4, 4, norm, 4, 4, -5.0)
    assert isinstance(second, MLASpec) and second.rope is None and second.qk_rope_head_dim == 0
    assert (second.q_a_norm, second.kv_a_norm, second.scale) == (norm, norm, 5**-0.5)
    compressor = CompressorSpec(4, 9, False, None, None, kv_norm=NormSpec("layer", 1e-6))
    assert second.indexer == CompressedIndexerSpec(3, 3, compressor)
    assert third.indexer is None and third.choice_source == 1
    assert spec.streams == MeanStreamsSpec(3)
    assert all(layer.hyper == SinkhornStreamsSpec(3, 2.0, 1e-6, 1e-4, 20) for layer in spec.layers)


def test_gates_are_cut_in_dense_mlps_and_all_experts() -> None:
    first, second, third = (layer.channel_mixer for layer in build_spec(view_of(shapes(), CONFIG)).layers)
    assert first == third == MLPSpec(24, activation_limit=10.0)
    assert isinstance(second, MoESpec) and (second.activation_limit, second.limits_shared) == (10.0, True)
    assert (second.num_experts, second.top_k, second.shared_intermediate_size) == (4, 2, 8)
    assert (second.routed_scaling_factor, second.correction_bias) == (2.5, True)
    limited = build_spec(view_of(shapes(), CONFIG | {"swiglu_limit": 3.0})).layers[0].channel_mixer
    assert limited == MLPSpec(24, activation_limit=3.0)


def test_keys_are_normed_before_they_are_pooled() -> None:
    sources = build_spec(view_of(shapes(), CONFIG)).parameters
    base, ours = "model.layers.1.self_attn.indexer.", "layers.1.token_mixer.indexer."
    joint = sources[f"{ours}compressor.kv_gate_proj.weight"]
    assert joint.pieces == (Piece(f"{base}wk.weight"), Piece(f"{base}index_kpool_compress_gate"))
    assert sources[f"{ours}compressor.kv_norm.bias"].pieces == (Piece(f"{base}k_norm.bias"),)


@pytest.mark.parametrize(
    ("stated", "bound"),
    [
        ({}, -5.0),
        ({"linear_lower_bound": -2.0}, -2.0),
        ({"linear_lower_bound": None}, None),
        ({"linear_attn_config": {"gate_lower_bound": -3.0}}, -3.0),
        ({"linear_lower_bound": None, "linear_attn_config": {"safe_gate": True}}, -5.0),
        ({"linear_lower_bound": None, "linear_attn_config": {"safe_gate": False}}, None),
        ({"linear_lower_bound": None, "linear_attn_config": {"head_dim": 4}}, -5.0),
        ({"linear_attn_config": {"safe_gate": False}}, -5.0),
        ({"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}}, None),
    ],
)
def test_decays_have_a_bound_unless_it_is_null(stated: dict[str, Any], bound: float | None) -> None:
    assert mixers(build_spec(view_of(shapes(), CONFIG | stated)))[0].least_log_decay == bound


@pytest.mark.parametrize("stated", [{"index_topk_pattern": "FFS"}, {"index_topk_pattern": ["full", "full", "shared"]}])
def test_a_pattern_says_which_layers_share(stated: dict[str, Any]) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "indexer_types"} | stated
    assert [getattr(mixer, "choice_source", None) for mixer in mixers(build_spec(view_of(shapes(), config)))] == [
        None, None, 1,
    ]  # fmt: skip


def test_pictures_and_the_layer_that_drafts_are_left_out() -> None:
    others = {"model.visual.merger.proj.weight": (9, 8), "model.layers.3.eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
    named = {name.replace("model.", "model.language_model."): shape for name, shape in shapes().items()}
    named |= {name.replace("model.layers", "model.language_model.layers"): shape for name, shape in others.items()}
    view = view_of(named, {"model_type": "glm5_next", "text_config": CONFIG | {"num_hidden_layers": 3}})
    spec = family_builder("glm5_next")(view)
    assert spec.model_type == "glm5_next_text" and len(spec.layers) == 3
    assert fact(view, "vision")[0] == "left out"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": [INDEXED, INDEXED, INDEXED]}, "layer_types"),
        ({"layer_types": [LINEAR, INDEXED]}, "layer_types"),
        ({"layer_types": [LINEAR, INDEXED, "sliding_attention"]}, "layer_types"),
        ({"mlp_layer_types": ["sparse"] * 3}, "mlp_layer_types"),
        ({"indexer_types": ["full", "shared", "shared"]}, "layer 1 goes by another layer's choice"),
        ({"indexer_types": ["full", "full", "full"]}, "indexer"),
        ({"index_topk": 10}, "index_topk is 10, which isn't a multiple of the 4 tokens"),
        ({"index_kpool": 3}, "index_kpool"),
        ({"index_head_dim": 8}, "index_head_dim"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail"),
        ({"qk_rope_head_dim": 2}, "qk_rope_head_dim"),
        ({"hc_mult": 4}, "hc_attn_fn|hc_ffn_fn|shape"),
        ({"linear_head_dim": 8}, "linear_head_dim"),
        ({"linear_lower_bound": 1.0}, "linear_lower_bound|gate_lower_bound"),
        ({"linear_attn_config": "kda"}, "linear_attn_config is 'kda'; it must be an object"),
        ({"linear_attn_config": [-5.0]}, "linear_attn_config"),
        ({"linear_attn_config": 0}, "linear_attn_config"),
        ({"linear_attn_config": {"kda": {"gate_lower_bound": -3.0}}}, "linear_attn_config.kda"),
        (
            {"linear_lower_bound": -5.0, "linear_attn_config": {"gate_lower_bound": -3.0}},
            "linear_lower_bound is '-5.0', but linear_attn_config.gate_lower_bound is '-3.0'",
        ),
        ({"num_local_experts": 8}, "num_local_experts is '8', but n_routed_experts is '4'"),
        ({"n_group": 3}, "group"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"intermediate_size": 32}, "intermediate_size"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        family_builder("glm5_next_text")(view_of(shapes(), CONFIG | change))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model.layers.0.self_attn.A_log": ()}, "A_log has shape"),
        ({"model.layers.1.mlp.gate.e_score_correction_bias": None}, "e_score_correction_bias is missing"),
    ],
)
def test_damaged_files_are_refused(changed: dict[str, Any], named: str) -> None:
    found = {name: shape for name, shape in (shapes() | changed).items() if shape is not None}
    with pytest.raises(CheckpointError, match=named):
        build_spec(view_of(found, CONFIG))
