"""MiniMax-M3: both spellings of the files, and what config.json may not contradict."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import CheckpointError, CorruptCheckpoint
from inference.modelling.families.minimax_m3 import build_spec
from inference.modelling.families.registry import family_builder
from tests.inference.modelling.families.headers import HIDDEN, attention, experts, mlp, norms, outer, view_of

CONFIG: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "num_experts_per_tok": 2,
    "index_block_size": 32, "index_topk_blocks": 8,
}  # fmt: skip
SPARSE = {
    "sparse_attention_freq": [0, 1], "sparse_num_index_heads": 2, "sparse_index_dim": 6, "sparse_block_size": 32,
    "sparse_topk_blocks": 8, "sparse_local_block": 1,
}  # fmt: skip
KINDS = {"layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"]}


def shapes(*, is_early: bool = False) -> dict[str, tuple[int, ...]]:
    found = outer()
    for number in range(2):
        layer = f"model.layers.{number}."
        found |= norms(layer, "input_layernorm", "post_attention_layernorm") | attention(f"{layer}self_attn.")
        found |= {f"{layer}self_attn.{name}_norm.weight": (4,) for name in "qk"}
        if not number:
            found |= mlp(f"{layer}mlp.")
            continue
        index = f"{layer}self_attn." + ("index_" if is_early else "indexer.")
        found |= {f"{index}q_proj.weight": (12, HIDDEN), f"{index}k_proj.weight": (6, HIDDEN)}
        found |= {f"{index}{name}_norm.weight": (6,) for name in "qk"}
        base = layer + ("block_sparse_moe." if is_early else "mlp.")
        names = ("w1", "w3", "w2") if is_early else ("gate_proj", "up_proj", "down_proj")
        if is_early:
            found |= experts(f"{base}experts.", names=names)
        else:
            found |= {f"{base}experts.gate_up_proj": (4, 16, HIDDEN), f"{base}experts.down_proj": (4, HIDDEN, 8)}
        found |= mlp(f"{base}shared_experts.", 12) | {f"{base}gate.weight": (4, HIDDEN)}
        found[f"{base}e_score_correction_bias" if is_early else f"{base}gate.e_score_correction_bias"] = (4,)
    return found


def test_both_spellings_are_the_same_model() -> None:
    new = build_spec(view_of(shapes(), CONFIG | KINDS))
    plain = {key: value for key, value in CONFIG.items() if not key.startswith("index_")}
    early = build_spec(view_of(shapes(is_early=True), plain | {"sparse_attention_config": SPARSE}
                               | {"mlp_layer_types": ["dense", "sparse"]}))  # fmt: skip
    assert new.layers == early.layers
    dense, sparse = (layer.token_mixer for layer in new.layers)
    assert dense.block_indexer is None and sparse.block_indexer is not None
    assert (sparse.block_indexer.block_size, sparse.block_indexer.top_k, sparse.block_indexer.head_dim) == (32, 8, 6)
    assert [part.name for part in sparse.state()] == ["k", "v", "index_k"]
    moe = new.layers[1].channel_mixer
    assert (moe.gate_clamp, moe.shared_intermediate_size, moe.routed_scaling_factor) == ((1.702, 7.0), 12, 2.0)
    assert new.layers[0].channel_mixer.gate_clamp == (1.702, 7.0)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"mlp_layer_types": ["sparse"] * 2}, "mlp_layer_types"),
        ({"index_n_heads": 4}, "index_n_heads"),
        ({"index_head_dim": 4}, "index_head_dim"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"intermediate_size": 9}, "intermediate_size"),
        ({"dense_intermediate_size": 9}, "dense_intermediate_size"),
        ({"shared_intermediate_size": 9}, "shared_intermediate_size"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(shapes(), CONFIG | KINDS | change))
    assert caught.value.param == param


def test_a_query_group_without_an_index_head_is_refused() -> None:
    wrong = shapes() | {"model.layers.1.self_attn.indexer.q_proj.weight": (24, HIDDEN)}
    with pytest.raises(CheckpointError) as caught:
        build_spec(view_of(wrong, CONFIG | KINDS))
    assert caught.value.param == "index_n_heads"


@pytest.mark.parametrize(
    ("beside", "param"),
    [
        ({"sparse_attention_config": "blocks"}, "sparse_attention_config"),
        ({"sparse_attention_config": {"sparse_topk_blocks": 4}}, "index_topk_blocks"),
        ({"sparse_attention_config": {"sparse_block_size": 64}}, "index_block_size"),
    ],
)
def test_early_settings_of_blocks_are_in_an_object_and_no_others(beside: dict[str, Any], param: str) -> None:
    with pytest.raises(CorruptCheckpoint) as caught:
        family_builder("minimax_m3_vl_text")(view_of(shapes(), CONFIG | KINDS | beside))
    assert caught.value.param == param
