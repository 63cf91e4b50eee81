"""Number and width of heads from projections and config.json."""

from __future__ import annotations

import pytest

from inference.errors import CorruptCheckpoint, TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.config import Confidence
from inference.modelling.families.head_sizes import HeadSizes, read_heads, with_default_heads
from tests.inference.modelling.families.headers import HIDDEN, attention, fact, view_of


def heads_of(shapes: dict, config: dict, overrides: dict | None = None, **options):
    view = view_of(shapes, config, overrides)
    return read_heads(view, "", **options), view


def test_rows_by_the_heads_of_the_config() -> None:
    sizes, view = heads_of(attention("self_attn."), {"num_attention_heads": 4, "num_key_value_heads": 2})
    assert sizes == HeadSizes(4, 2, 4)
    assert view.facts.warnings == []
    assert fact(view, "attention.num_heads") == (4, Confidence.CERTAIN)


@pytest.mark.parametrize(("config", "count"), [({}, 8), ({"num_heads": 4}, 4), ({"num_attention_heads": 2}, 2)])
def test_a_familys_default_count_is_for_a_config_without_one(config: dict, count: int) -> None:
    view = with_default_heads(view_of(attention("self_attn.", kv_rows=HIDDEN), config), 8)
    assert read_heads(view, "").num_heads == count


def test_the_length_of_a_norm_of_q_is_the_width() -> None:
    shapes = attention("self_attn.") | {"self_attn.q_norm.weight": (8,)}
    assert heads_of(shapes, {"num_attention_heads": 2, "head_dim": 8})[0] == HeadSizes(2, 1, 8)
    with pytest.raises(TensorShapeMismatch, match=r"head_dim 4, but the tensors have 8 \(length of self_attn\.q_norm"):
        heads_of(shapes, {"num_attention_heads": 4, "head_dim": 4})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_attention_heads": 4, "head_dim": 8}, r"head_dim 8, but the tensors have 4 .*q_proj.* 16 rows for 4"),
        ({"num_attention_heads": 2, "head_dim": 4}, r"head_dim 4, but the tensors have 8"),
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, r"num_key_value_heads 4, but the tensors have 2"),
        ({"head_dim": 4, "num_key_value_heads": 1}, r"num_key_value_heads 1, but the tensors have 2"),
    ],
)
def test_heads_that_contradict_the_rows_are_refused_with_both(config: dict, message: str) -> None:
    with pytest.raises(TensorShapeMismatch, match=message):
        heads_of(attention("self_attn."), config)


def test_a_fused_projection_that_contradicts_the_config_is_refused() -> None:
    shapes = {"self_attn.qkv_proj.weight": (16 + 2 * 8, HIDDEN), "self_attn.o_proj.weight": (HIDDEN, 16)}
    with pytest.raises(TensorShapeMismatch, match="head_dim 8, but the tensors have 4"):
        heads_of(shapes, {"num_attention_heads": 4, "head_dim": 8})
    with pytest.raises(TensorShapeMismatch, match="num_key_value_heads 4, but the tensors have 2"):
        heads_of(shapes, {"num_attention_heads": 4, "num_key_value_heads": 4})


def test_a_family_default_applies_where_it_gives_the_rows() -> None:
    shapes = attention("self_attn.", q_rows=64, kv_rows=32)
    assert heads_of(shapes, {"num_attention_heads": 4}, default_head_dim=16)[0] == HeadSizes(4, 2, 16)


def test_a_usual_width_is_inferred_with_low_confidence() -> None:
    sizes, view = heads_of(attention("self_attn.", q_rows=256, kv_rows=128), {})
    assert sizes == HeadSizes(4, 2, 64)
    assert fact(view, "attention.head_dim") == (64, Confidence.LOW)
    assert "head_dim is inferred (64)" in view.facts.warnings[0]


def test_an_override_of_the_width_is_checked() -> None:
    shapes = attention("self_attn.")
    assert heads_of(shapes, {"num_attention_heads": 4}, {"attention.head_dim": 8})[0] == HeadSizes(2, 1, 8)
    with pytest.raises(CorruptCheckpoint, match=r"attention\.head_dim is set to '0'"):
        heads_of(shapes, {}, {"attention.head_dim": 0})


def test_a_fused_projection() -> None:
    shapes = {"self_attn.qkv_proj.weight": (16 + 2 * 8, HIDDEN), "self_attn.o_proj.weight": (HIDDEN, 16)}
    assert heads_of(shapes, {"num_attention_heads": 4})[0] == HeadSizes(4, 2, 4)
    shapes["self_attn.qkv_proj.weight"] = (16 + 2 * 8 + 1, HIDDEN)
    with pytest.raises(TensorShapeMismatch, match=r"qkv_proj\.weight has 33 rows"):
        heads_of(shapes, {"num_attention_heads": 4})


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TensorShapeMismatch, match=r"config\.json says 5 attention heads"):
        heads_of(attention("self_attn."), {"num_attention_heads": 5})
    with pytest.raises(TensorShapeMismatch, match="4 query heads can't share 3 key/value heads"):
        heads_of(attention("self_attn.", kv_rows=12), {"num_attention_heads": 4})
    with pytest.raises(UnsupportedArchitecture, match=r"num_attention_heads is not in config\.json"):
        heads_of(attention("self_attn."), {})


def test_a_norm_without_values_says_nothing_about_the_heads() -> None:
    shapes = attention("l.self_attn.") | {"l.self_attn.q_norm.weight": (0,)}
    assert read_heads(view_of(shapes, {"num_attention_heads": 4}), "l.").head_dim == 4
