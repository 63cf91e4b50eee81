"""DBRX: its experts, which lie one below the other, and its nested configuration."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config_keys import check_config_keys
from inference.modelling.families.dbrx import CONFIG_KEYS, build_spec
from inference.modelling.specs.sources import Piece
from tests.inference.modelling.families.headers import HIDDEN, VOCAB, Shapes, view_of

FFN = {"ffn_hidden_size": 10, "moe_num_experts": 3, "moe_top_k": 2}
CONFIG = {"n_heads": 4, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5}, "ffn_config": FFN}


def shapes(rows: int = 30) -> Shapes:
    base = "transformer.blocks.0."
    found: Shapes = {"transformer.wte.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    found |= {f"{base}norm_attn_norm.norm_{number}.weight": (HIDDEN,) for number in (1, 2)}
    found |= {f"{base}norm_attn_norm.attn.Wqkv.weight": (2 * HIDDEN, HIDDEN), "transformer.norm_f.weight": (HIDDEN,)}
    found |= {f"{base}norm_attn_norm.attn.out_proj.weight": (HIDDEN, HIDDEN)}
    found |= {f"{base}ffn.experts.mlp.{name}": (rows, HIDDEN) for name in ("w1", "v1", "w2")}
    return found | {f"{base}ffn.router.layer.weight": (3, HIDDEN)}


def test_experts_are_parts_of_three_matrices() -> None:
    spec = build_spec(view_of(shapes(), CONFIG))
    layer, mlp = spec.layers[0], "transformer.blocks.0.ffn.experts.mlp."
    assert (layer.channel_mixer.num_experts, layer.channel_mixer.intermediate_size) == (3, 10)
    assert (layer.token_mixer.num_kv_heads, layer.token_mixer.qkv_clip, layer.token_mixer.rope.theta) == (2, 8, 5e5)
    down = spec.parameters["layers.0.channel_mixer.experts.down_proj"].pieces
    assert down == (Piece(f"{mlp}w2", parts=3, index=-1, transpose=True),)
    assert type(spec).from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ffn_config": FFN | {"moe_num_experts": 6}}, "moe_num_experts 6"),
        ({"ffn_config": FFN | {"ffn_hidden_size": 11}}, "ffn_hidden_size 11"),
        ({"attn_config": {"kv_n_heads": 3}}, "3 heads of k and v"),
        ({"d_model": 17}, "d_model 17"),
    ],
)
def test_contradictions_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(TensorShapeMismatch, match=words):
        build_spec(view_of(shapes(), CONFIG | change))


def test_rows_that_no_number_of_experts_gives_are_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match="its use doesn't allow"):
        build_spec(view_of(shapes(31), CONFIG))


@pytest.mark.parametrize(
    "change",
    [
        {"ffn_config": {"moe_normalize_expert_weights": 2}},
        {"ffn_config": {"ffn_act_fn": {"name": "gelu"}, "moe_top_k": 2}},
        {"attn_config": {"qk_norm": True}},
    ],
    ids=str,
)
def test_what_is_not_served_is_named(change: dict[str, Any]) -> None:
    part = next(iter(change))
    with pytest.raises(UnsupportedArchitecture, match=f"{part}.{next(iter(change[part]))}"):
        check_config_keys(view_of(shapes(), CONFIG | change), "dbrx", CONFIG_KEYS["dbrx"])


@pytest.mark.parametrize("value", [True, "experts", [1], None])
def test_a_part_that_is_no_object_is_no_crash(value: Any) -> None:
    spec = build_spec(view_of(shapes(), CONFIG | {"ffn_config": value}))
    assert (spec.layers[0].channel_mixer.top_k, spec.layers[0].channel_mixer.normalise_top_k) == (1, True)
