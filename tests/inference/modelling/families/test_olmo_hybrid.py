"""OLMo Hybrid: kinds of layers by their tensors, places of norms, contradictions of config.json."""

from __future__ import annotations

import pytest

from inference.errors import TensorShapeMismatch, UnsupportedArchitecture
from inference.modelling.families.olmo_hybrid import build_spec
from inference.modelling.specs.layers import AttentionSpec
from inference.modelling.specs.linear import GatedDeltaSpec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.headers import HIDDEN, attention, mlp, norms, outer, view_of

CONFIG = {"num_attention_heads": 4, "linear_num_key_heads": 2, "rms_norm_eps": 1e-6}


def delta(base: str) -> dict:
    """Two key heads of width 4, four value heads of width 3, a kernel of 4."""
    widths = {"q": 8, "k": 8, "v": 12}
    shapes = {f"{base}{name}_conv1d.weight": (width, 1, 4) for name, width in widths.items()}
    rows = {**widths, "g": 12, "a": 4, "b": 4}
    shapes |= {f"{base}{name}_proj.weight": (width, HIDDEN) for name, width in rows.items()}
    return shapes | {
        f"{base}A_log": (4,), f"{base}dt_bias": (4,), f"{base}o_norm.weight": (3,),
        f"{base}o_proj.weight": (HIDDEN, 12),
    }  # fmt: skip


def shapes(behind: str = "post_attention_layernorm") -> dict:
    first, second = "model.layers.0.", "model.layers.1."
    return {
        **outer(),
        **norms(first, "attention_layer_norm", "feedforward_layer_norm"), **delta(f"{first}linear_attn."),
        **mlp(f"{first}mlp."),
        **norms(second, behind, "post_feedforward_layernorm"), **attention(f"{second}self_attn."),
        **mlp(f"{second}mlp."),
        f"{second}self_attn.q_norm.weight": (HIDDEN,), f"{second}self_attn.k_norm.weight": (8,),
    }  # fmt: skip


@pytest.mark.parametrize("behind", ["post_attention_layernorm", "feedforward_layer_norm"])
def test_norms_are_before_the_delta_rule_and_behind_attention(behind: str) -> None:
    spec = build_spec(view_of(shapes(behind), CONFIG))
    first, second = spec.layers
    assert first.token_mixer == GatedDeltaSpec(2, 4, 4, 3, 4, NormSpec("rms", 1e-5), beta_scale=2.0)
    assert first.token_norm == first.channel_norm == NormSpec("rms", 1e-6)
    assert (first.token_post_norm, second.token_norm) == (None, None)
    assert second.token_post_norm == second.channel_post_norm == NormSpec("rms", 1e-6)
    assert isinstance(second.token_mixer, AttentionSpec) and not second.token_mixer.qk_norm_per_head
    assert spec.parameters["layers.1.token_post_norm.weight"].pieces[0].name == f"model.layers.1.{behind}.weight"


@pytest.mark.parametrize(
    ("stated", "theta"),
    [({}, None), ({"rope_parameters": {"rope_theta": None}}, None), ({"rope_theta": 5e5}, 5e5)],
)
def test_positions_are_rotated_only_with_a_stated_base(stated: dict, theta: float | None) -> None:
    mixer = build_spec(view_of(shapes(), CONFIG | stated)).layers[1].token_mixer
    assert isinstance(mixer, AttentionSpec)
    assert (mixer.rope and mixer.rope.theta) == theta


@pytest.mark.parametrize(
    "change",
    [
        {"linear_num_key_heads": 3}, {"linear_num_value_heads": 2}, {"linear_key_head_dim": 3},
        {"linear_value_head_dim": 4}, {"linear_conv_kernel_dim": 3}, {"layer_types": ["full_attention"] * 2},
    ],
)  # fmt: skip
def test_contradictions_are_refused_by_key(change: dict) -> None:
    with pytest.raises(TensorShapeMismatch, match=next(iter(change))):
        build_spec(view_of(shapes(), CONFIG | change))


def test_a_layer_of_no_kind_is_refused() -> None:
    found = {name: shape for name, shape in shapes().items() if ".1.self_attn." not in name}
    with pytest.raises(UnsupportedArchitecture, match=r"model\.layers\.1"):
        build_spec(view_of(found, CONFIG))
