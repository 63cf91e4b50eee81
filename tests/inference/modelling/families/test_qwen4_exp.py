"""Qwen4-Exp: streams, indexers and n-grams by their tensors, and contradictions of config.json."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError
from inference.modelling.families.config import CheckpointConfig, CheckpointView, Facts, TensorInfo, TensorTable
from inference.modelling.families.qwen4_exp import build_spec
from inference.modelling.specs.indexer import PooledIndexerSpec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.linear import GatedDeltaSpec
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, experts, mlp, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 1, "eos_token_id": [7, 8],
    "indexer_budget": 12, "indexer_compress_ratio": 4, "hc_count": 2, "hc_lowrank": 5, "ple_layer_ids": [1],
    "layer_types": ["linear_attention", "full_attention"], "num_experts_per_tok": 2, "ngram_size": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}  # fmt: skip


def reading(name: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.hc_norm.weight": (2 * HIDDEN,),
        f"{name}.input_mix_weight_down.weight": (5, 2 * HIDDEN),
        f"{name}.input_mix_weight_up.weight": (2 * HIDDEN, 5),
    }


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN),
        **reading("model.hyper_connection_mixer"),
    }  # fmt: skip
    for number in range(2):
        layer = f"model.layers.{number}."
        for name in ("attn_hyper_connection", "mlp_hyper_connection"):
            found |= reading(layer + name)
            found[f"{layer}{name}.block_inject_weight.weight"] = (2, 2 * HIDDEN)
        found |= {f"{layer}mlp.gate.weight": (4, HIDDEN), f"{layer}mlp.shared_expert_gate.weight": (1, HIDDEN)}
        found |= experts(f"{layer}mlp.experts.") | mlp(f"{layer}mlp.shared_expert.")
    linear = "model.layers.0.linear_attn."
    found |= {
        f"{linear}in_proj_qkv.weight": (2 * 8 + 2 * 6, HIDDEN), f"{linear}in_proj_z.weight": (12, HIDDEN),
        f"{linear}in_proj_a.weight": (2, HIDDEN), f"{linear}in_proj_b.weight": (2, HIDDEN),
        f"{linear}conv1d.weight": (28, 1, 4), f"{linear}A_log": (2,), f"{linear}dt_bias": (2,),
        f"{linear}norm.weight": (6,), f"{linear}out_proj.weight": (HIDDEN, 12),
    }  # fmt: skip
    ple = "model.layers.0.ple."
    found |= {f"{ple}{name}.weight": (2 * HIDDEN,) for name in ("norm_key", "norm_query", "norm_conv")}
    found |= {f"{ple}ple_embedding.ngram_embedding.shard_{number}.weight": (20, 3) for number in range(3)}
    found |= {
        f"{ple}key_proj.weight": (2 * HIDDEN, 12), f"{ple}value_proj.weight": (HIDDEN, 12),
        f"{ple}conv1d.weight": (2 * HIDDEN, 1, 4), f"{ple}ple_embedding.layer_multipliers": (3,),
        f"{ple}ple_embedding.ngram_heads_vocab_sizes": (4,), f"{ple}ple_embedding.ngram_heads_offsets": (4,),
    }  # fmt: skip
    attention = "model.layers.1.self_attn."
    found |= {f"{attention}{name}_proj.weight": (16, HIDDEN) for name in "kv"}
    found |= {f"{attention}{name}_norm.weight": (8,) for name in "qk"}
    found |= {f"{attention}q_proj.weight": (64, HIDDEN), f"{attention}o_proj.weight": (HIDDEN, 32)}
    found[f"{attention}indexer.index_qk_proj.weight"] = (4 * 5, HIDDEN)
    return found | {f"{attention}indexer.{name}_layernorm.weight": (5,) for name in "qk"}


def view(config: dict[str, Any]) -> CheckpointView:
    """The view, with the hash in integers."""
    integers = ("layer_multipliers", "vocab_sizes", "heads_offsets")
    infos = {name: TensorInfo("I64" if name.endswith(integers) else "F32", shape) for name, shape in shapes().items()}
    return CheckpointView(CheckpointConfig(config), TensorTable(infos), Facts())


def test_streams_indexer_and_n_grams_come_from_the_tensors() -> None:
    spec = build_spec(view(CONFIG))
    first, second = spec.layers
    assert spec.final_norm is None and spec.streams is not None
    assert first.hyper is not None and (first.hyper.num_streams, first.hyper.rank) == (2, 5)
    assert isinstance(first.token_mixer, GatedDeltaSpec) and first.token_mixer.gate_activation == "silu"
    assert isinstance(second.token_mixer, AttentionSpec)
    assert second.token_mixer.block_indexer == PooledIndexerSpec(3, 5, 4, 3, first.hyper.norm)
    assert first.ngram is not None and second.ngram is None
    assert (first.ngram.order, first.ngram.heads_per_order, first.ngram.rows) == (3, 2, 60)
    assert (first.ngram.eos_token_id, first.ngram.conv_kernel) == (7, 4)
    assert spec.integer_parameters() == {f"layers.0.ngram.hash.{name}" for name in ("multipliers", "sizes", "offsets")}
    assert [part.name for part in first.state()] == ["ngram_tokens", "ngram_conv_state", "conv_state", "delta_state"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"layer_types": None, "full_attention_interval": 3}, "full_attention_interval"),
        ({"hc_count": 4}, "hc_count"),
        ({"hc_lowrank": 6}, "hc_lowrank"),
        ({"indexer_n_heads": 2}, "indexer_n_heads"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads"),
        ({"indexer_head_dim": 4}, "indexer_head_dim"),
        ({"indexer_budget": 13}, "indexer_budget"),
        ({"indexer_budget": None}, "indexer_budget"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5}}, "rope_type"),
        ({"output_gate_type": "gelu"}, "output_gate_type"),
        ({"ple_layer_ids": [2]}, "ple_layer_ids"),
        ({"ngram_size": 4}, "ngram_size"),
        ({"heads_per_ngram": 4}, "heads_per_ngram"),
        ({"ple_embed_dim": 16}, "ple_embed_dim"),
        ({"ple_conv_kernel_size": 3}, "ple_conv_kernel_size"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"eos_token_id": []}, "eos_token_id"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    with pytest.raises(CheckpointError) as caught:
        build_spec(view(config))
    assert caught.value.param == param


def test_a_hash_in_floats_is_refused() -> None:
    with pytest.raises(CheckpointError, match="stored as F32; I64"):
        build_spec(view_of(shapes(), CONFIG))
