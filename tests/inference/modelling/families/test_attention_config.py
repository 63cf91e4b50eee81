"""Attention of a checkpoint: fused or separate projections, biases and norms by presence."""

from __future__ import annotations

import pytest

from inference.modelling.families.attention_config import attention_sources, attention_spec
from inference.modelling.families.head_sizes import HeadSizes
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, view_of

HEADS = HeadSizes(4, 2, 4)


@pytest.mark.parametrize("bias", ["q_proj", "o_proj"])
def test_biases_are_there_if_their_tensors_are(bias: str) -> None:
    view = view_of(attention("l.self_attn.") | {f"l.self_attn.{bias}.bias": (HIDDEN,)})
    spec = attention_spec(view, "l.", HEADS, None)
    assert (spec.qkv_bias, spec.o_bias) == (bias == "q_proj", bias == "o_proj")
    assert ("qkv_proj.bias" in attention_sources(view, spec, "l.")) == spec.qkv_bias


def test_norms_of_each_head_that_are_stored_one_by_one_are_stacked() -> None:
    each = {f"l.self_attn.{name}.norms.{head}.weight": (4,) for name in ("qn", "kn") for head in range(4)}
    view = view_of(attention("l.self_attn.") | each)
    norm = NormSpec("layer", has_bias=False)
    spec = attention_spec(view, "l.", HEADS, None, qk_norm=norm, qk_norm_of_each_head=True)
    sources = attention_sources(view, spec, "l.", qk_norms=("qn", "kn"))
    assert spec.parameter_shapes(HIDDEN)["k_norm.weight"] == (2, 4)
    assert (sources["q_norm.weight"].num_experts, sources["k_norm.weight"].num_experts) == (4, 2)
    assert "q_norm.bias" not in sources
