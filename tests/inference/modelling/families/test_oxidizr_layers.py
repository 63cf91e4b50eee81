"""Layers of oxidizr checkpoints: sizes from shapes, and heads that shapes don't show."""

from __future__ import annotations

import math

import pytest

from inference.errors import (
    InvalidRequest,
    TensorShapeMismatch,
    UnsupportedArchitecture,
)
from inference.modelling.families.config import (
    Confidence,
)
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, Mamba1Spec, Mamba2Spec, MLPSpec, MoESpec
from inference.modelling.specs.linear import Mamba3Spec
from inference.modelling.specs.parts import NormSpec
from tests.inference.modelling.families.test_oxidizr import fact, read
from tests.models_registry.detection.builders import (
    Shapes,
    gqa_mlp,
    mamba1,
    mamba2,
    mamba3,
    mla,
    mlp,
    model,
    moe,
)


def test_mamba2_arithmetic() -> None:
    spec, _ = read(model(16, 64, mamba2(0, 16, H=4, P=8, S=6, K=3)), {"mamba2_state_size": 6})
    assert spec.layers[0].token_norm == NormSpec("layer", 1e-6)
    assert spec.layers[0].channel_mixer is None
    assert spec.layers[0].token_mixer == Mamba2Spec(
        intermediate_size=32, num_heads=4, head_dim=8, state_size=6, num_groups=1, conv_kernel=3, norm_group_size=32,
        gated_norm=NormSpec("rms", 1e-6), dt_min=0.001, dt_max=0.1, proj_bias=True, a_clamp=(1e-6, 1e6),
    )  # fmt: skip
    assert spec.final_norm == NormSpec("rms", 1e-5)
    assert spec.parameters["layers.0.token_norm.bias"].pieces[0].name == "layers.0.mamba2.norm.bias"


def test_groups_come_from_config_or_are_one() -> None:
    shapes = model(16, 64, mamba2(0, 16, H=4, P=8, S=6, G=2))
    for config, groups, size, confidence in (
        ({"mamba2_state_size": 6}, 2, 6, Confidence.CERTAIN),
        ({"mamba2_n_groups": 2}, 2, 6, Confidence.CERTAIN),
        ({}, 1, 12, Confidence.LOW),
        ({"mamba2_state_size": 7}, 1, 12, Confidence.LOW),
    ):
        spec, facts = read(shapes, config)
        mixer = spec.layers[0].token_mixer
        assert isinstance(mixer, Mamba2Spec)
        assert (mixer.num_groups, mixer.state_size) == (groups, size)
        assert fact(facts, "mamba2.num_groups") == (groups, confidence)
    spec, _ = read(shapes, overrides={"mamba2.num_groups": 4})
    assert spec.layers[0].token_mixer.num_groups == 4  # type: ignore[union-attr]
    with pytest.raises(TensorShapeMismatch):
        read(shapes, overrides={"mamba2.num_groups": 5})


def test_wide_state_does_not_inflate_the_inner_width() -> None:
    """2GS above h: the trap of counting convolution rows."""
    spec, _ = read(model(8, 64, mamba2(0, 8, H=2, P=8, S=32)), {"mamba2_state_size": 32})
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, Mamba2Spec)
    assert (mixer.intermediate_size, mixer.head_dim, mixer.state_size) == (16, 8, 32)


@pytest.mark.parametrize("complex_rope", [True, False])
@pytest.mark.parametrize("conv", [True, False])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_mamba3_variants(complex_rope: bool, conv: bool, rank: int, groups: int) -> None:
    layer = mamba3(0, 16, H=4, P=4, S=6, G=groups, complex_rope=complex_rope, conv=conv, R=rank)
    spec, _ = read(model(16, 64, layer))
    assert spec.layers[0].token_mixer == Mamba3Spec(
        intermediate_size=16, num_heads=4, head_dim=4, state_size=6, num_groups=groups, conv_kernel=4 if conv else None,
        complex_rope=complex_rope, mimo_rank=rank, gated_norm=NormSpec("rms", 1e-6), bc_norm=NormSpec("rms", 1e-6),
    )  # fmt: skip


def test_mamba1_arithmetic() -> None:
    spec, _ = read(model(8, 64, mamba1(0, 8)))
    assert spec.layers[0].token_norm == NormSpec("rms", 1e-5)
    assert spec.layers[0].token_mixer == Mamba1Spec(
        intermediate_size=16, state_size=16, conv_kernel=4, dt_rank=16, positive_a=True, state_clamp=30.0
    )
    assert spec.parameters["layers.0.token_mixer.A_log"].pieces[0].name == "layers.0.mamba.a_log"
    assert spec.parameters["layers.0.token_mixer.D"].pieces[0].name == "layers.0.mamba.d"


def test_mla_and_moe_arithmetic() -> None:
    layer = mla(0, 16, heads=2, kv_latent=10, q_latent=6, d_rope=4) | moe(0, 16, experts=3, f=8)
    spec, facts = read(model(16, 64, layer), {"experts_per_tok": 3, "rope_theta": 500.0})
    mixer, channel = spec.layers[0].token_mixer, spec.layers[0].channel_mixer
    assert isinstance(mixer, MLASpec)
    assert isinstance(channel, MoESpec)
    assert (mixer.num_heads, mixer.kv_lora_rank, mixer.q_lora_rank) == (2, 10, 6)
    assert (mixer.qk_nope_head_dim, mixer.qk_rope_head_dim, mixer.v_head_dim) == (8, 4, 8)
    assert mixer.scale == pytest.approx(1 / math.sqrt(12))
    assert mixer.q_rope_from_hidden
    assert mixer.q_a_norm is mixer.kv_a_norm is None
    assert (mixer.rope.theta, mixer.rope.rotary_dim, mixer.rope.interleaved) == (500.0, 4, False)
    assert (channel.num_experts, channel.top_k, channel.intermediate_size) == (3, 3, 8)
    assert (channel.shared_intermediate_size, channel.shared_gate) == (8, False)
    assert (channel.scoring, channel.normalise_top_k) == ("softmax", True)
    assert [piece.name for piece in spec.parameters["layers.0.token_mixer.kv_a_proj.weight"].pieces] == [
        "layers.0.self_attn.w_dkv.weight", "layers.0.self_attn.w_kr.weight",
    ]  # fmt: skip
    assert fact(facts, "rope.theta")[0] == 500.0


def test_a_shared_expert_is_used_if_and_only_if_it_is_there() -> None:
    latent = mla(0, 16, heads=2, kv_latent=8, q_latent=8, d_rope=4)
    for shared, flag in ((True, False), (False, True)):
        spec, _ = read(
            model(16, 64, latent | moe(0, 16, experts=2, f=8, shared=shared)), {"shared_expert_enabled": flag}
        )
        assert bool(spec.layers[0].channel_mixer.shared_intermediate_size) is shared  # type: ignore[union-attr]


def test_mla_with_a_dense_mlp() -> None:
    layer = mla(0, 16, heads=2, kv_latent=8, q_latent=8, d_rope=4) | mlp("layers.0.mlp.", 16, 24)
    spec, _ = read(model(16, 64, layer))
    assert spec.layers[0].kind == "mla+mlp"
    assert spec.layers[0].channel_mixer == MLPSpec(24)


def test_gqa_arithmetic() -> None:
    spec, _ = read(model(16, 64, gqa_mlp(0, 16, heads=4, kv=2, f=24)), {"num_attention_heads": 4, "max_seq_len": 77})
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, AttentionSpec)
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.scale) == (4, 2, 4, 0.5)
    assert mixer.rope is not None
    assert (mixer.rope.theta, mixer.rope.rotary_dim, mixer.rope.interleaved) == (10000.0, 4, False)
    assert mixer.rope.max_position_embeddings == 77
    assert (mixer.qkv_bias, mixer.o_bias, mixer.qk_norm) == (False, False, None)


def test_any_mix_of_layers() -> None:
    h = 16
    shapes = model(
        h, 64,
        mamba1(0, h),
        mamba2(1, h, H=4, P=8, S=4),
        mamba3(2, h, H=4, P=8, S=4, conv=True, R=2),
        mla(3, h, heads=2, kv_latent=8, q_latent=8, d_rope=4) | moe(3, h, experts=2, f=8),
        gqa_mlp(4, h, heads=2, kv=1, f=24),
        gqa_mlp(5, h, heads=2, kv=2, f=24) | {},
    )  # fmt: skip
    spec, facts = read(shapes, {"num_attention_heads": 2, "mamba_layers": [0, 1, 2], "mamba2_state_size": 4})
    assert [layer.kind for layer in spec.layers] == [
        "mamba1", "mamba2", "mamba3", "mla+moe", "attention+mlp", "attention+mlp",
    ]  # fmt: skip
    assert not any("mamba_layers" in warning for warning in facts.warnings)


def attention_only(h: int = 256, heads: int = 4, kv: int = 2) -> Shapes:
    return model(h, 64, gqa_mlp(0, h, heads=heads, kv=kv, f=8))


def head_dim(spec: ModelSpec) -> int:
    mixer = spec.layers[0].token_mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer.head_dim


def test_head_dim_rule() -> None:
    for config, expected, confidence in (
        ({"num_attention_heads": 4}, 64, Confidence.CERTAIN),
        ({"num_attention_heads": 8}, 32, Confidence.CERTAIN),
        ({"head_dim": 128}, 128, Confidence.CERTAIN),
        ({}, 64, Confidence.LOW),
        ({"num_attention_heads": 7}, 64, Confidence.LOW),
        ({"num_attention_heads": 4, "hidden_size": 999}, 64, Confidence.LOW),
    ):
        spec, facts = read(attention_only(), config)
        assert head_dim(spec) == expected, config
        assert fact(facts, "attention.head_dim") == (expected, confidence), config
        assert any("head_dim" in w for w in facts.warnings) is (confidence is Confidence.LOW)


def test_head_dim_is_64_then_128_then_refused() -> None:
    shapes = attention_only(h=384, heads=3, kv=3)
    assert head_dim(read(shapes)[0]) == 64
    shapes["layers.0.self_attn.k_proj.weight"] = shapes["layers.0.self_attn.v_proj.weight"] = (256, 384)
    # 6 query heads can't share 4 key heads of 64; 3 can't share 2 of 128
    with pytest.raises(UnsupportedArchitecture, match=r"attention\.num_heads"):
        read(shapes)
    with pytest.raises(UnsupportedArchitecture, match=r"attention\.num_heads"):
        read(attention_only(h=96, heads=3, kv=3))
    assert head_dim(read(attention_only(h=96, heads=3, kv=3), overrides={"attention.num_heads": 3})[0]) == 32


def test_head_overrides() -> None:
    spec, facts = read(attention_only(), {"num_attention_heads": 4}, {"attention.head_dim": 32})
    assert head_dim(spec) == 32
    assert fact(facts, "attention.head_dim") == (32, Confidence.OVERRIDE)
    assert fact(facts, "attention.num_heads")[0] == 8
    for bad in (
        {"attention.head_dim": 60},
        {"attention.num_heads": 5},
        {"attention.num_heads": 8, "attention.head_dim": 64},
    ):
        with pytest.raises(InvalidRequest, match="don't fit"):
            read(attention_only(), overrides=bad)


def test_gqa_beside_mla_takes_its_heads() -> None:
    h = 24
    shapes = model(
        h, 64, mla(0, h, heads=3, kv_latent=8, q_latent=8, d_rope=4) | mlp("layers.0.mlp.", h, 8),
        gqa_mlp(1, h, heads=3, kv=1, f=8),
    )  # fmt: skip
    spec, facts = read(shapes)
    assert spec.layers[1].token_mixer.head_dim == 8  # type: ignore[union-attr]
    assert fact(facts, "attention.head_dim") == (8, Confidence.MEDIUM)
