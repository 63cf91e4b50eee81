"""Specs whose layers, together, use every field that a family can set."""

from __future__ import annotations

from inference.modelling.spec import LayerSpec, ModelSpec
from inference.modelling.specs.hyper import HyperConnectionSpec, HyperStreamsSpec
from inference.modelling.specs.latent import MLASpec
from inference.modelling.specs.layers import AttentionSpec, Mamba1Spec, Mamba2Spec, MLPSpec, MoESpec
from inference.modelling.specs.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba3Spec,
    MLSTMSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from inference.modelling.specs.ngram import NGramSpec
from inference.modelling.specs.parts import NormSpec, RopeScaling, RopeSpec
from inference.modelling.specs.rwkv import ChannelMixSpec, TimeMixSpec
from inference.modelling.specs.zaya import ConvolvedAttentionSpec, MemoryMoESpec

HIDDEN, VOCAB = 64, 320
RMS, WEIGHTLESS, GEMMA = NormSpec("rms", 1e-5), NormSpec("rms", weightless=True), NormSpec("rms", 1e-6, offset=1.0)
LAYERNORM = NormSpec("layer", 1e-5)
ROPE = RopeSpec(10000.0, 16)
MLP = MLPSpec(96)


def _attention(**options) -> AttentionSpec:
    return AttentionSpec(4, 2, 16, 0.25, **options)


def _layers(mixer, channel=MLP, norm=RMS, **options) -> tuple[LayerSpec, ...]:
    return (LayerSpec(mixer, norm, channel_mixer=channel, channel_norm=channel and norm, **options),)


_LONG = RopeScaling(
    "longrope", factor=4.0, original_max_position_embeddings=32, short_factor=(1.0,) * 8, long_factor=(2.0,) * 8
)
_DYNAMIC = RopeScaling("dynamic", factor=2.0)
_MLA = MLASpec(4, 32, 24, 16, 16, 16, 0.2, RopeSpec(10000.0, 16, interleaved=True), False, RMS, RMS)
_MAMBA1 = Mamba1Spec(128, 16, 4, 8)
_MAMBA2 = Mamba2Spec(128, 8, 16, 16, 2, 4, 64, RMS)
_MAMBA3 = Mamba3Spec(64, 4, 16, 16, 2, None, True, 0, RMS, RMS)

STACKS: dict[str, tuple[LayerSpec, ...]] = {
    "llama": _layers(_attention(rope=ROPE)),
    "qwen": _layers(_attention(rope=ROPE, qkv_bias=True, qk_norm=RMS, o_bias=True)),
    "gemma": _layers(
        _attention(rope=ROPE, sliding_window=24, softcap=50.0),
        MLPSpec(96, "gelu_tanh"),
        GEMMA,
        token_post_norm=GEMMA,
        channel_post_norm=GEMMA,
    )
    + _layers(_attention(rope=ROPE, softcap=50.0, qk_norm=GEMMA)),
    "partly rotated, norm over all": _layers(
        _attention(rope=RopeSpec(10000.0, 8), qk_norm=RMS, qk_norm_per_head=False), norm=LAYERNORM
    ),
    "longrope": _layers(_attention(rope=RopeSpec(10000.0, 16, max_position_embeddings=64, scaling=_LONG))),
    "dynamic rope": _layers(_attention(rope=RopeSpec(10000.0, 16, max_position_embeddings=32, scaling=_DYNAMIC))),
    "mixtral": _layers(_attention(rope=ROPE), MoESpec(4, 2, 48)),
    "deepseek v2": _layers(
        _MLA,
        MoESpec(8, 2, 32, num_expert_groups=2, top_k_groups=1, routed_scaling_factor=2.0, shared_intermediate_size=32),
    ),
    "deepseek v3": _layers(
        _MLA,
        MoESpec(
            8,
            2,
            32,
            scoring="sigmoid",
            num_expert_groups=2,
            top_k_groups=1,
            group_score="top2",
            correction_bias=True,
            shared_intermediate_size=32,
        ),
    ),
    "oxidizr mla": _layers(MLASpec(4, 32, None, 16, 16, 16, 0.2, ROPE, True, bias=True)),
    "qwen moe": _layers(_attention(rope=ROPE), MoESpec(4, 2, 48, shared_intermediate_size=32, shared_gate=True)),
    "mamba": _layers(_MAMBA1, None),
    "jamba": _layers(Mamba1Spec(128, 16, 4, 8, inner_norm=RMS, proj_bias=True), MoESpec(4, 2, 48))
    + _layers(_attention()),
    "oxidizr mamba1": _layers(
        Mamba1Spec(128, 16, 4, 8, positive_a=True, state_clamp=30.0, inner_norm=WEIGHTLESS), None
    ),
    "mamba2": _layers(_MAMBA2, None),
    "odd mamba2": _layers(Mamba2Spec(60, 3, 20, 12, 1, 3, 60, RMS, conv_bias=False), None),
    "bamba": _layers(_MAMBA2, residual_multiplier=0.5) + _layers(_attention(rope=RopeSpec(10000.0, 8))),
    "nemotron h": (
        LayerSpec(Mamba2Spec(128, 8, 16, 16, 2, 4, 64, RMS, norm_before_gate=True), RMS),
        LayerSpec(channel_mixer=MLPSpec(96, "relu2", gated=False), channel_norm=RMS),
        LayerSpec(_attention(), RMS),
        LayerSpec(channel_mixer=MoESpec(4, 2, 48, "relu2", gated=False), channel_norm=RMS),
    ),
    "oxidizr mamba3": _layers(_MAMBA3, None)
    + _layers(Mamba3Spec(64, 4, 16, 16, 2, 4, False, 2, RMS, RMS, a_override="-(1..H)"), None),
    "qwen next": _layers(GatedDeltaSpec(2, 4, 16, 16, 4, RMS)) + _layers(_attention(rope=ROPE, output_gate=True)),
    "odd delta": _layers(GatedDeltaSpec(1, 3, 10, 7, 3, RMS, beta_scale=2.0, gate_activation="sigmoid")),
    "qwen 4": _layers(
        _attention(rope=ROPE),
        norm=None,
        hyper=HyperConnectionSpec(2, 8, RMS),
        ngram=NGramSpec(HIDDEN, 2, 3, 2, 8, 40, 4, 0, RMS),
    ),
    "zaya": _layers(
        ConvolvedAttentionSpec(4, 2, 16, 0.25, rope=ROPE, sliding_window=24),
        MemoryMoESpec(4, 1, 48, normalise_top_k=False, router_width=8, memory_norm=RMS, reads_memory=False),
        scales_residual=True,
    ),
    "kimi": _layers(KimiDeltaSpec(3, 10, 4, RMS, 6, 6)) + _layers(_MLA),
    "lfm2": _layers(ShortConvSpec(HIDDEN, 3, bias=True)) + _layers(_attention(rope=ROPE, qk_norm=RMS)),
    "rwkv": _layers(TimeMixSpec(HIDDEN, 60), None, LAYERNORM) + _layers(ChannelMixSpec(HIDDEN, 96), None, LAYERNORM),
    "griffin": _layers(RGLRUSpec(60, 4, 4)) + _layers(_attention(rope=ROPE, sliding_window=24)),
    "xlstm": _layers(MLSTMSpec(3, 10, 20, 15.0, 1e-6, 1e-6)),
    "minimax": _layers(LightningSpec(3, 12, 0.7, RMS), MoESpec(4, 2, 48)) + _layers(_attention(rope=ROPE)),
}


def make_spec(name: str, vocab_size: int = VOCAB) -> ModelSpec:
    """A network of one of the stacks, in bfloat16."""
    softcapped, hyper = name == "gemma", STACKS[name][0].hyper
    return ModelSpec(
        "huggingface", name, HIDDEN, vocab_size, 128, STACKS[name], RMS, "bfloat16", tie_word_embeddings=softcapped,
        logits_softcap=30.0 if softcapped else None, logits_multiplier=0.5 if name == "bamba" else 1.0,
        embedding_multiplier=2.0 if softcapped else 1.0,
        streams=None if hyper is None else HyperStreamsSpec(hyper), scales_embedding=name == "zaya",
    )  # fmt: skip
