"""What the configs of several architectures have in common: sizes, heads, and the rotation with its scaling.

A value that the metadata lack is left out, so that the family takes its default or refuses. Sources: what llama.cpp's
converter writes (``set_gguf_parameters``) and what its ``llama-model.cpp`` reads. Standard library only.
"""

from __future__ import annotations

import math
from typing import Any

from inference.errors import UnsupportedArchitecture
from inference.modelling.gguf.metadata import Metadata

Config = dict[str, Any]
GATING_SOFTMAX, GATING_SIGMOID = 1, 2
GATING_NAMES = {GATING_SOFTMAX: "softmax", GATING_SIGMOID: "sigmoid"}
_LLAMA3_TRAINED, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0
"""The constants of Llama 3.1 and later ones: trained context, and the bands' factors."""


def given(**values: Any) -> Config:
    """The values that are there."""
    return {key: value for key, value in values.items() if value is not None}


def outer(meta: Metadata) -> Config:
    """What all architectures have."""
    return given(
        hidden_size=meta.integer("embedding_length"),
        num_hidden_layers=meta.integer("block_count"),
        max_position_embeddings=meta.integer("context_length"),
        vocab_size=meta.integer("vocab_size"),
        tie_word_embeddings=not meta.has_tensor("output.weight"),
        bos_token_id=meta.integer("tokenizer.ggml.bos_token_id", whole_key=True),
        eos_token_id=meta.integer("tokenizer.ggml.eos_token_id", whole_key=True),
    )


def heads(meta: Metadata) -> Config:
    """Heads of the attention; a layer without attention states 0 of them."""
    return given(
        num_attention_heads=max(meta.per_layer("attention.head_count"), default=None),
        num_key_value_heads=max(meta.per_layer("attention.head_count_kv"), default=None),
        head_dim=meta.integer("attention.key_length"),
    )


def width_of_head(meta: Metadata) -> int | None:
    """As stated, or by the number of heads."""
    stated = meta.integer("attention.key_length")
    count, hidden = max(meta.per_layer("attention.head_count"), default=0), meta.integer("embedding_length")
    return stated or (hidden // count if hidden and count else None)


def decoder(meta: Metadata) -> Config:
    """Attention, an MLP and RMS norms."""
    return (
        outer(meta)
        | heads(meta)
        | given(
            intermediate_size=max(meta.per_layer("feed_forward_length"), default=None),
            rms_norm_eps=meta.number("attention.layer_norm_rms_epsilon"),
            hidden_act="silu",  # by the architecture: no key says it
        )
    )


def rope(meta: Metadata) -> Config:
    """The rotation: base, share of the head, and scaling."""
    head_dim, rotated = width_of_head(meta), meta.integer("rope.dimension_count")
    found = given(rope_theta=meta.number("rope.freq_base"), rope_scaling=scaling(meta, rotated or head_dim or 0))
    if head_dim and rotated and rotated != head_dim:
        found["partial_rotary_factor"] = rotated / head_dim
    return found


def stated_rope(meta: Metadata) -> Config:
    """As ``rope``, with llama.cpp's base and share of the head where the file has none: families have other ones."""
    return {"rope_theta": 10000.0, "partial_rotary_factor": 1.0} | rope(meta)


def window_types(meta: Metadata, window: int | None, *, every: int = 4, full_first: bool = False) -> Config:
    """The width of the windows, and the type of each layer.

    Args:
        window: In positions; None and 0: no layer has one.
        every: The last of so many layers is full, unless the file states which are.
        full_first: The first of them is, instead of the last.
    """
    if not window:
        return {"sliding_window": None}
    count = model_layers(meta)
    flags = meta.flags("attention.sliding_window_pattern")
    if isinstance(flags, int):
        every, flags = flags, None
    if flags is None:
        place = 0 if full_first else every - 1
        flags = [every == 0 or number % every != place for number in range(count)]
    types = ["sliding_attention" if has_window else "full_attention" for has_window in flags[:count]]
    return {"sliding_window": window, "layer_types": types}


def draft_layers(meta: Metadata) -> int:
    """How many of the last layers only draft tokens."""
    return meta.integer("nextn_predict_layers") or 0


def model_layers(meta: Metadata) -> int:
    """How many layers the model has; those that draft stand behind them."""
    return (meta.integer("block_count") or 0) - draft_layers(meta)


def expect_gating(meta: Metadata, *known: int) -> None:
    """Refuse another function of the experts' scores than ``known``; a file may leave it out.

    Raises:
        UnsupportedArchitecture: The file states another one.
    """
    gating = meta.integer("expert_gating_func")
    if gating and gating not in known:
        read = " and ".join(f"{item} ({GATING_NAMES[item]})" for item in known)
        raise UnsupportedArchitecture(
            f"the GGUF key {meta.architecture}.expert_gating_func is {gating}; {read} is read.",
            param="expert_gating_func",
        )


def expect_normalised(meta: Metadata) -> None:
    """Refuse chosen scores that aren't divided by their sum; a file may leave it out.

    Raises:
        UnsupportedArchitecture: The file states it.
    """
    if meta.boolean("expert_weights_norm") is False:
        raise UnsupportedArchitecture(
            f"the GGUF key {meta.architecture}.expert_weights_norm is false; this architecture is read with scores "
            "that are divided by their sum.",
            param="expert_weights_norm",
        )


def granite_multipliers(meta: Metadata) -> Config:
    """What Granite multiplies by; without a stated scale of the scores, the usual one."""
    head_dim = width_of_head(meta)
    return given(
        embedding_multiplier=meta.number("embedding_scale"),
        residual_multiplier=meta.number("residual_scale"),
        attention_multiplier=meta.number("attention.scale") or (head_dim**-0.5 if head_dim else None),
        logits_scaling=meta.number("logit_scale"),
    )


def scaling(meta: Metadata, rotated: int) -> Config | None:
    # Files from before rope.scaling have rope.scale_linear; llama.cpp takes a factor without a type for linear.
    factor = meta.number("rope.scaling.factor") or meta.number("rope.scale_linear")
    kind = meta.string("rope.scaling.type") or ("none" if factor in (None, 1.0) else "linear")
    trained = meta.integer("rope.scaling.original_context_length")
    long, short = meta.floats("rope_factors_long.weight"), meta.floats("rope_factors_short.weight")
    if long or short:
        return given(
            rope_type="longrope",
            long_factor=long,
            short_factor=short,
            original_max_position_embeddings=trained,
            attention_factor=meta.number("rope.scaling.attn_factor"),
        )
    factors = meta.floats("rope_freqs.weight")
    if factors and any(value != 1.0 for value in factors):
        return _by_frequency(meta, factors, rotated)
    if kind == "linear":
        return given(rope_type="linear", factor=factor)
    if kind == "yarn":
        magnitude = meta.number("rope.scaling.attn_factor") or meta.number("rope.scaling.yarn_attn_factor")
        # The converter writes attention_factor there, and attn_factor, which takes back YaRN's own magnitude.
        is_multiplier = magnitude is not None and magnitude < 1.0
        return given(
            rope_type="yarn",
            factor=factor,
            original_max_position_embeddings=trained,
            **{"attn_factor" if is_multiplier else "attention_factor": magnitude},
            beta_fast=meta.number("rope.scaling.yarn_beta_fast"),
            beta_slow=meta.number("rope.scaling.yarn_beta_slow"),
        )
    if kind not in ("none", "longrope"):
        raise UnsupportedArchitecture(
            f"the GGUF key {meta.architecture}.rope.scaling.type is {kind[:60]!r}; none, linear, yarn and longrope are "
            "read.",
            param="rope.scaling.type",
        )
    return None


def _by_frequency(meta: Metadata, factors: list[float], rotated: int) -> Config:
    """Divisors of the frequencies: Llama 3's, if they are what its rule gives, else as they are."""
    stretch = max(factors)
    base = meta.number("rope.freq_base") or 10000.0
    if len(factors) == rotated // 2 and 1 < base < math.inf and stretch > 0:
        rule = [llama3_divisor(base ** (-2 * pair / rotated), stretch) for pair in range(len(factors))]
        if all(math.isclose(mine, theirs, rel_tol=1e-4) for mine, theirs in zip(rule, factors, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": stretch,
                "low_freq_factor": _LLAMA3_LOW,
                "high_freq_factor": _LLAMA3_HIGH,
                "original_max_position_embeddings": _LLAMA3_TRAINED,
            }
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
    }


def llama3_divisor(frequency: float, stretch: float) -> float:
    """What Llama 3.1 divides a frequency by: 1 for short waves, ``stretch`` for long ones, smooth between.

    Source: https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py, ``apply_scaling``.
    """
    wavelength = 2 * math.pi / frequency
    if wavelength < _LLAMA3_TRAINED / _LLAMA3_HIGH:
        return 1.0
    if wavelength > _LLAMA3_TRAINED / _LLAMA3_LOW:
        return stretch
    share = (_LLAMA3_TRAINED / wavelength - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    return 1 / ((1 - share) / stretch + share)
