"""DeepSeek V4: three namings, types of layers by their tensors, rotations, and contradictions of config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint, MissingTensor
from inference.modelling.families.config import CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.deepseek_v4 import build_spec
from inference.modelling.families.registry import family_builder
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.compressed import CompressedAttentionSpec
from inference.modelling.specs.gated_streams import GatedStreamsSpec
from inference.modelling.specs.layers import MoESpec
from inference.modelling.specs.sinkhorn_streams import SinkhornStreamsSpec
from inference.modelling.specs.sources import Piece
from inference.modelling.specs.token_moe import TokenMoESpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, fact, view_of

SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v4", "num_attention_heads": 4, "head_dim": 8, "q_lora_rank": 12, "o_groups": 2,
    "o_lora_rank": 5, "sliding_window": 16, "index_n_heads": 3, "index_head_dim": 6, "index_topk": 7, "hc_mult": 2,
    "layer_types": [SLIDING, CSA, HCA], "mlp_layer_types": ["hash_moe", "moe", "moe"], "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 10, "n_shared_experts": 1, "partial_rotary_factor": 0.5,
    "compress_rates": {CSA: 4, HCA: 9}, "hc_eps": 1e-3,
}  # fmt: skip
PUBLISHED_NAMES = {
    ".self_attn.compressor.indexer.scorer.weights_proj": ".attn.indexer.weights_proj",
    ".self_attn.compressor.indexer.q_b_proj": ".attn.indexer.wq_b",
    ".self_attn.compressor.indexer.": ".attn.indexer.compressor.", ".self_attn.": ".attn.",
    "compressor.kv_norm": "compressor.norm", ".position_bias": ".ape", ".q_a_proj": ".wq_a", ".q_b_proj": ".wq_b",
    ".q_a_norm": ".q_norm", ".kv_proj": ".wkv", "compressor.gate_proj": "compressor.wgate", ".o_a_proj": ".wo_a",
    ".o_b_proj": ".wo_b", ".sinks": ".attn_sink", ".mlp.": ".ffn.", ".e_score_correction_bias": ".bias",
    "shared_experts.gate_proj": "shared_experts.w1", "shared_experts.down_proj": "shared_experts.w2",
    "shared_experts.up_proj": "shared_experts.w3", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", ".attn_hc.": ".hc_attn_", ".ffn_hc.": ".hc_ffn_", "lm_head": "head",
}  # fmt: skip


def compressor(base: str, window: int, width: int, series: int) -> Shapes:
    rows = series * width
    return {
        f"{base}kv_proj.weight": (rows, HIDDEN), f"{base}gate_proj.weight": (rows, HIDDEN),
        f"{base}position_bias": (window, rows), f"{base}kv_norm.weight": (width,),
    }  # fmt: skip


def shapes() -> Shapes:
    """The names of transformers' memory."""
    found: Shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN),
        "model.hc_head.hc_fn": (2, 2 * HIDDEN), "model.hc_head.hc_base": (2,), "model.hc_head.hc_scale": (1,),
    }  # fmt: skip
    for number in range(3):
        layer = f"model.layers.{number}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        found |= {f"{layer}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        for name in ("attn_hc", "ffn_hc"):
            found |= {f"{layer}{name}.fn": (8, 2 * HIDDEN), f"{layer}{name}.base": (8,), f"{layer}{name}.scale": (3,)}
        found |= {
            f"{attention}q_a_proj.weight": (12, HIDDEN), f"{attention}q_a_norm.weight": (12,),
            f"{attention}q_b_proj.weight": (32, 12), f"{attention}kv_proj.weight": (8, HIDDEN),
            f"{attention}kv_norm.weight": (8,), f"{attention}sinks": (4,), f"{attention}o_a_proj.weight": (10, 16),
            f"{attention}o_b_proj.weight": (HIDDEN, 10), f"{mlp}gate.weight": (4, HIDDEN),
            f"{mlp}experts.gate_up_proj": (4, 20, HIDDEN), f"{mlp}experts.down_proj": (4, HIDDEN, 10),
            f"{mlp}shared_experts.gate_proj.weight": (10, HIDDEN), f"{mlp}shared_experts.up_proj.weight": (10, HIDDEN),
            f"{mlp}shared_experts.down_proj.weight": (HIDDEN, 10),
            f"{mlp}gate.e_score_correction_bias": (4,),
        }  # fmt: skip
    del found["model.layers.0.mlp.gate.e_score_correction_bias"]
    first = "model.layers.1.self_attn.compressor."
    found |= compressor(first, 4, 8, 2) | compressor(f"{first}indexer.", 4, 6, 2)
    found |= {f"{first}indexer.q_b_proj.weight": (18, 12), f"{first}indexer.scorer.weights_proj.weight": (3, HIDDEN)}
    found |= compressor("model.layers.2.self_attn.compressor.", 9, 8, 1)
    return found | {"model.layers.0.mlp.gate.tid2eid": (VOCAB, 2)}


def published(*, by_transformers: bool = False) -> Shapes:
    """The names of published files, or those that transformers writes."""
    found: Shapes = {}
    for name, shape in shapes().items():
        if "experts.gate_up_proj" in name or ("experts.down_proj" in name and "shared" not in name):
            continue
        for ours, theirs in PUBLISHED_NAMES.items():
            name = name.replace(ours, theirs)
        found[name] = shape
    for number in range(3):
        for expert in range(4):
            base = f"model.layers.{number}.ffn.experts.{expert}."
            found |= {f"{base}w1.weight": (10, HIDDEN), f"{base}w3.weight": (10, HIDDEN)}
            found[f"{base}w2.weight"] = (HIDDEN, 10)
    if by_transformers:
        return {name.replace(".attn.kv_norm", ".attn.norm"): shape for name, shape in found.items()}
    found = {name.replace("hc_head.hc_", "hc_head_").replace("embed_tokens", "embed"): found[name] for name in found}
    return {name.removeprefix("model."): shape for name, shape in found.items()}


def view(found: Shapes, config: dict[str, Any], table_dtype: str = "I64") -> CheckpointView:
    """The table of each token's experts is whole numbers."""
    plain = view_of(found, config)
    infos = {name: TensorInfo(table_dtype if "tid2eid" in name else "F32", shape) for name, shape in found.items()}
    return replace(plain, tensors=TensorTable(infos))


def spec_of(**change: Any) -> ModelSpec:
    return family_builder("deepseek_v4")(view(shapes(), CONFIG | change))


def attentions(spec: ModelSpec) -> tuple[CompressedAttentionSpec, ...]:
    found = []
    for layer in spec.layers:
        assert isinstance(layer.token_mixer, CompressedAttentionSpec)
        found.append(layer.token_mixer)
    return tuple(found)


def test_layers_are_of_the_types_that_their_tensors_have() -> None:
    first, second, third = attentions(spec := spec_of())
    assert first.compressor is first.indexer is third.indexer is None
    assert second.compressor is not None and second.indexer is not None and third.compressor is not None
    assert (second.compressor.window, second.compressor.width, second.compressor.overlaps) == (4, 8, True)
    assert (third.compressor.window, third.compressor.width, third.compressor.overlaps) == (9, 8, False)
    assert (second.indexer.num_heads, second.indexer.top_k) == (3, 7)
    assert second.indexer.compressor == replace(second.compressor, width=6)
    for mixer in (first, second, third):
        assert (mixer.num_heads, mixer.head_dim, mixer.q_lora_rank, mixer.sliding_window) == (4, 8, 12, 16)
        assert (mixer.output_groups, mixer.output_rank, mixer.scale) == (2, 5, 8**-0.5)
    rows = [spec.parameters[f"layers.0.token_mixer.o_a.group{number}_proj.weight"].pieces for number in (0, 1)]
    name = "model.layers.0.self_attn.o_a_proj.weight"
    assert rows == [(Piece(name, rows=(0, 5)),), (Piece(name, rows=(5, 10)),)]


def test_streams_and_experts() -> None:
    spec = spec_of(hc_sinkhorn_iters=5, swiglu_limit=3.0)
    assert spec.streams == GatedStreamsSpec(2, 2.0, 1e-3, 1e-6)
    assert all(layer.hyper == SinkhornStreamsSpec(2, 2.0, 1e-3, 1e-6, 5) for layer in spec.layers)
    first, second, _ = (layer.channel_mixer for layer in spec.layers)
    assert isinstance(first, TokenMoESpec) and first.vocab_size == VOCAB and not first.correction_bias
    assert type(second) is MoESpec and second.correction_bias
    for experts in (first, second):
        assert (experts.num_experts, experts.top_k, experts.intermediate_size) == (4, 2, 10)
        assert (experts.scoring, experts.routed_scaling_factor) == ("sqrt_softplus", 1.5)
        assert (experts.activation_limit, experts.limits_shared, experts.shared_intermediate_size) == (
            3.0,
            True,
            10,
        )
    assert spec.integer_parameters() == {"layers.0.channel_mixer.token_experts"}


@pytest.mark.parametrize("by_transformers", [False, True])
def test_published_files_are_the_same_model(by_transformers: bool) -> None:
    early = {"layer_types": None, "mlp_layer_types": None, "num_hash_layers": 1, "compress_rates": None}
    early |= {"compress_ratios": [0, 4, 128, 0], "partial_rotary_factor": None, "qk_rope_head_dim": 4}
    found = build_spec(view(published(by_transformers=by_transformers), CONFIG | early))
    spec = spec_of()
    assert found.layers == spec.layers and found.parameters.keys() == spec.parameters.keys()
    experts = found.parameters["layers.1.channel_mixer.experts.gate_up_proj"]
    assert experts.num_experts == 4 and [piece.name[-9:-7] for piece in experts.pieces] == ["w1", "w3"]


def test_only_layers_with_entries_are_stretched() -> None:
    yarn = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
    first, second, third = attentions(spec_of(rope_scaling=yarn, rope_theta=300, compress_rope_theta=5000))
    assert (first.rope.theta, first.rope.scaling, first.rope.rotary_dim) == (300, None, 4)
    assert second.rope == third.rope and second.rope.theta == 5000 and second.rope.interleaved
    assert second.rope.scaling is not None and second.rope.scaling.attention_factor == 1.0
    nested = {"main": {"rope_theta": 9.0, "partial_rotary_factor": 0.5}, "compress": {**yarn, "rope_theta": 7.0}}
    with pytest.raises(CheckpointError, match=r"8 values of a head are rotated .*but the indexer"):
        spec_of(rope_parameters=nested)
    nested["compress"]["partial_rotary_factor"] = 0.25
    first, second, _ = attentions(spec_of(rope_parameters=nested))
    assert (first.rope.theta, first.rope.rotary_dim, second.rope.theta, second.rope.rotary_dim) == (9.0, 4, 7.0, 2)
    assert second.rope.scaling is not None and second.rope.scaling.attention_factor is None
    assert attentions(spec_of())[0].rope.theta == 10000 and attentions(spec_of())[1].rope.theta == 160000


def test_an_override_of_the_base_is_that_of_layers_without_entries() -> None:
    found = replace(view(shapes(), CONFIG), facts=Facts({"rope.theta": 77.0}))
    first, second, _ = attentions(build_spec(found))
    assert (first.rope.theta, second.rope.theta) == (77.0, 160000)
    assert fact(found, "rope.compress_theta")[0] == 160000


def test_layers_that_draft_are_counted_and_left_out() -> None:
    drafting = {"mtp.0.attn.wkv.weight": (8, HIDDEN), "mtp.0.enorm.weight": (HIDDEN,)}
    found = view(published() | drafting, CONFIG | {"num_nextn_predict_layers": 1})
    build_spec(found)
    assert fact(found, "prediction_layers")[0] == "left out"
    assert next(item for item in found.facts.facts if item.name == "prediction_layers").evidence.startswith("2 tensors")


@pytest.mark.parametrize("dtype", ["I64", "I32"])
def test_the_table_is_whole_numbers(dtype: str) -> None:
    assert build_spec(view(shapes(), CONFIG, dtype)) == spec_of()
    with pytest.raises(CheckpointError, match="stored as F32; I64, I32 can be read"):
        build_spec(view_of(shapes(), CONFIG))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": [CSA, CSA, HCA]}, "makes layer 0 compressed_sparse_attention"),
        ({"layer_types": [SLIDING, CSA]}, "layer_types"),
        ({"layer_types": [SLIDING, CSA, "full_attention"]}, "full_attention"),
        ({"layer_types": None, "compress_ratios": [0, 4, 4]}, "makes layer 2 compressed_sparse_attention"),
        ({"layer_types": None, "compress_ratios": [0, 4]}, "compress_ratios is .0, 4.; it needs one of"),
        ({"layer_types": None, "compress_ratios": [0, 4, 16]}, "compress_ratios"),
        ({"mlp_layer_types": ["moe", "moe", "moe"]}, "makes layer 0 moe"),
        ({"mlp_layer_types": ["moe"]}, "mlp_layer_types"),
        ({"mlp_layer_types": ["hash_moe", "moe", "dense"]}, "dense"),
        ({"mlp_layer_types": None, "num_hash_layers": 3}, "makes layer 1 hash_moe"),
        ({"compress_rates": {CSA: 4, HCA: 128}}, "compress_rates"),
        ({"compress_rate_csa": 8}, "compress_rate_csa"),
        ({"compress_rates": {CSA: "4"}}, "compress_rates.compressed_sparse_attention"),
        ({"compress_rates": {"rates": {CSA: 4, HCA: 9}}}, "compress_rates.rates"),
        ({"compress_ratios": [0, 4, 4]}, r"makes layer 2 compressed_sparse_attention \(compress_ratios"),
        ({"num_hash_layers": 3}, r"makes layer 1 hash_moe \(num_hash_layers"),
        ({"num_local_experts": 8}, "num_local_experts is '8', but n_routed_experts is '4'"),
        ({"num_attention_heads": 2}, "num_attention_heads"),
        ({"num_key_value_heads": 4}, "num_key_value_heads"),
        ({"head_dim": 16}, "head_dim"),
        ({"q_lora_rank": 8}, "q_lora_rank"),
        ({"o_groups": 4}, "o_groups"),
        ({"o_lora_rank": 10}, "o_lora_rank"),
        ({"index_n_heads": 4}, "index_n_heads"),
        ({"index_head_dim": 8}, "index_head_dim"),
        ({"index_topk": 0}, "index_topk"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"hc_mult": 4}, "hc_mult"),
        ({"hc_sinkhorn_iters": 0}, "hc_sinkhorn_iters"),
        ({"qk_rope_head_dim": 6}, "qk_rope_head_dim"),
        ({"partial_rotary_factor": 0.2, "rope_parameters": None}, "partial_rotary_factor"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "depend on the length"),
        ({"n_routed_experts": 6}, "n_routed_experts"),
        ({"num_experts_per_tok": 3}, "tid2eid has shape"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"moe_intermediate_size": 20}, "moe_intermediate_size"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"swiglu_limit": 0.0}, "swiglu_limit"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"kv_source_layer_ids": [1]}, "kv_source_layer_ids"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        spec_of(**change)


def test_groups_of_heads_must_have_the_same_width() -> None:
    found = shapes() | {"model.layers.0.self_attn.o_a_proj.weight": (10, 12)}
    with pytest.raises(CheckpointError, match="4 heads of 8 values can't be split"):
        build_spec(view(found, CONFIG))


@pytest.mark.parametrize("names", [shapes, published])
def test_what_is_missing_is_named_as_the_files_name_it(names: Any) -> None:
    found, left = names(), "model.layers.1.self_attn.q_a_proj.weight"
    if names is published:
        left = "layers.1.attn.wq_a.weight"
    del found[left]
    with pytest.raises(MissingTensor, match=left.replace(".", r"\.")):
        build_spec(view(found, CONFIG))


@pytest.mark.parametrize("beside", [{}, {"rope_type": "linear", "factor": 2.0}])
def test_of_two_objects_of_the_rotation_rope_scaling_wins(beside: dict[str, Any]) -> None:
    scaling = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64}
    alone = spec_of(rope_parameters=None, rope_scaling=scaling)
    assert spec_of(rope_parameters=beside, rope_scaling=scaling).layers == alone.layers


@pytest.mark.parametrize("value", ["4", 4, [4, 9], 0, False])
def test_rates_are_in_an_object(value: Any) -> None:
    with pytest.raises(
        CorruptCheckpoint, match=r"compress_rates is .* must be an object \(of compressed_sparse"
    ) as caught:
        spec_of(compress_rates=value)
    assert caught.value.param == "compress_rates"


def test_early_names_of_rates_may_say_the_same_and_no_other() -> None:
    for stated in ({}, {"compress_rates": None}, {"compress_rates": {HCA: 9, CSA: None}}):
        same = stated | {"compress_rate_csa": 4, "compress_rate_hca": 9, "compress_ratios": [0, 4, 128, 0]}
        assert spec_of(**same).layers == spec_of().layers
    with pytest.raises(CorruptCheckpoint, match=f"compress_rate_csa is '8', but compress_rates.{CSA} is '4'"):
        spec_of(compress_rate_csa=8)
