"""Read the rotary embedding from config.json, in the naming of transformers 5 and in the older one.

transformers 5 writes everything into ``rope_parameters``. Older files on the hub have ``rope_scaling`` and, at the
top level, ``rope_theta``.
Source: https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.config_values import number_with_evidence
from inference.modelling.specs.parts import RopeScaling, RopeSpec

_OUTER_KEYS = ("rope_theta", "partial_rotary_factor", "rotary_percent")
_TRAINED_CONTEXT = "original_max_position_embeddings"


def read_rope(
    view: CheckpointView,
    head_dim: int,
    *,
    max_position_embeddings: int,
    default_theta: float = 10000.0,
    default_partial: float | None = None,
    interleaved: bool = False,
    renamed_types: Mapping[str, str] | None = None,
    default_original: int | None = None,
    can_be_proportional: bool = False,
) -> RopeSpec:
    """The rotary embedding that config.json describes, in either naming.

    Args:
        head_dim: Width of the (rotary part of the) head, before ``partial_rotary_factor``.
        max_position_embeddings: The model's context.
        default_partial: Rotated share of the head when config.json has none; None: the family rotates whole heads.
        interleaved: Adjacent pairs rather than halves.
        renamed_types: A family's own names for scaling kinds (Phi-3's ``su``).
        default_original: The trained context when config.json has none (the model's context otherwise). In a family
            that has one, the top level's comes before that among the rope keys (Phi-3).
        can_be_proportional: The family may have Gemma 4's rotation, of which a share of a head's pairs turns.

    Raises:
        UnsupportedArchitecture: An unknown kind of scaling, an odd number of rotated values, or a share of the head in
            a family that has none.
        CorruptCheckpoint: A number is out of range, or a list has the wrong length.
    """
    rope = _rope_values(view.config, is_trained_context_outside=default_original is not None)
    theta = number_with_evidence(view, "rope.theta", ("rope_theta",), default_theta, low=1.001, high=1e15, config=rope)
    whole = 1.0 if default_partial is None else default_partial
    partial = rope.number("partial_rotary_factor", "rotary_percent", low=0.0, high=1.0, default=whole)
    if can_be_proportional and rope.string("rope_type", default="default") == "proportional":
        # Heads rotate as a whole, but only this share of their pairs, the fastest, turns.
        factor = rope.number("factor", default=1.0, low=1e-6, high=1e6)
        stretched = None if factor == 1.0 else RopeScaling("linear", factor)
        pairs = int(partial * head_dim // 2)
        return RopeSpec(theta, head_dim, interleaved, stretched, max_position_embeddings, turning_pairs=pairs)
    if default_partial is None and partial != 1.0:
        raise UnsupportedArchitecture(
            f"config.json: partial_rotary_factor is {partial:g}, but this family rotates whole heads, and programs "
            "differ in what it does; remove it if the model was trained without.",
            param="partial_rotary_factor",
        )
    rotary_dim = int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise UnsupportedArchitecture(
            f"config.json: {rotary_dim} of {head_dim} values of a head are rotated (partial_rotary_factor "
            f"{partial:g}); an even number from 2 on is needed.",
            param="partial_rotary_factor",
        )
    kind = rope.string("rope_type", "type", default="default")
    kind = (renamed_types or {}).get(kind, kind)
    scaling = _rope_scaling(rope, kind, rotary_dim, max_position_embeddings, default_original)
    if scaling is not None:
        view.facts.add("rope.scaling", kind, "config.json")
    return RopeSpec(theta, rotary_dim, interleaved, scaling, max_position_embeddings)


def described_rope(config: CheckpointConfig) -> Any:
    """What config.json says of the rotation; None: nothing.

    Of two objects ``rope_scaling`` wins, as in transformers. A base or a share of the head that only the other one has
    is taken from there: YaRN that a user adds beside ``rope_parameters`` keeps the model's base.
    """
    scaling, parameters = config.get("rope_scaling"), config.get("rope_parameters")
    if not scaling:
        return parameters
    if not isinstance(scaling, Mapping) or not isinstance(parameters, Mapping):
        return scaling
    stated = {key: value for key, value in scaling.items() if value is not None}
    return {key: parameters[key] for key in _OUTER_KEYS if key in parameters} | stated


def _rope_values(config: CheckpointConfig, *, is_trained_context_outside: bool = False) -> CheckpointConfig:
    """One flat object of all rope keys: the nested ones, filled up with those of the top level.

    Args:
        is_trained_context_outside: The top level's ``original_max_position_embeddings`` wins over the nested one.
    """
    nested: Any = described_rope(config)
    if nested is None:
        nested = {}
    if not isinstance(nested, Mapping):
        raise CorruptCheckpoint(
            f"config.json: rope_parameters is {str(nested)[:60]!r}; it must be an object.", param="rope_parameters"
        )
    if nested and all(isinstance(value, Mapping) or value is None for value in nested.values()):
        # transformers 5 may write one object for each layer type; callers of this function rotate all layers alike.
        kinds = [value for value in nested.values() if value is not None]
        if any(value != kinds[0] for value in kinds):
            raise CorruptCheckpoint(
                f"config.json: rope_parameters differ between the layer types {', '.join(map(str, nested))}; "
                "they must be the same for all layers.",
                param="rope_parameters",
            )
        nested = kinds[0] if kinds else {}
    values = {str(key): value for key, value in nested.items() if value is not None}
    for key in (*_OUTER_KEYS, _TRAINED_CONTEXT):
        wins = key == _TRAINED_CONTEXT and is_trained_context_outside
        if (wins or key not in values) and config.get(key) is not None:
            values[key] = config.get(key)
    return CheckpointConfig(values)


def _rope_scaling(
    rope: CheckpointConfig, kind: str, rotary_dim: int, max_positions: int, default_original: int | None
) -> RopeScaling | None:
    if kind in ("default", "none", ""):
        return None
    if kind not in ("linear", "llama3", "yarn", "longrope", "dynamic"):
        raise UnsupportedArchitecture(
            f"config.json: rope type {kind[:60]!r} is not supported; supported are default, linear, dynamic, llama3, "
            "yarn, longrope.",
            param="rope_type",
        )
    original = rope.integer(
        "original_max_position_embeddings", default=default_original or max_positions, low=2, high=1 << 30
    )
    # Without a factor, yarn and longrope stretch from the trained context to the model's.
    default_factor = max_positions / original if kind in ("yarn", "longrope") else None
    factor = rope.number("factor", default=default_factor, low=1e-6, high=1e6)
    common: dict[str, Any] = {"factor": factor, "original_max_position_embeddings": original}
    if kind == "llama3":
        low = rope.number("low_freq_factor", default=1.0, low=1e-6, high=1e6)
        high = rope.number("high_freq_factor", default=4.0, low=1e-6, high=1e6)
        if high < low:
            raise CorruptCheckpoint(
                f"config.json: high_freq_factor {high:g} must not be below low_freq_factor {low:g}.",
                param="high_freq_factor",
            )
        return RopeScaling("llama3", low_freq_factor=low, high_freq_factor=high, **common)
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            # 0 means "not given" in transformers for both.
            beta_fast=rope.number("beta_fast", default=32.0, low=0.0, high=1e6) or 32.0,
            beta_slow=rope.number("beta_slow", default=1.0, low=0.0, high=1e6) or 1.0,
            mscale=_optional_number(rope, "mscale"),
            mscale_all_dim=_optional_number(rope, "mscale_all_dim"),
            attention_factor=_yarn_attention_factor(rope, factor),
            truncate=rope.boolean("truncate", default=True),
            **common,
        )
    if kind == "longrope":
        return _longrope(rope, rotary_dim, common)
    if kind == "dynamic":
        if rotary_dim < 4:
            raise UnsupportedArchitecture(
                f"rope type dynamic needs at least 4 rotated values in a head, not {rotary_dim}.", param="rope_type"
            )
        return RopeScaling("dynamic", **common)
    return RopeScaling("linear", **common)


def _yarn_attention_factor(rope: CheckpointConfig, factor: float) -> float | None:
    """What cosines and sines are multiplied by; None: YaRN's own magnitude, or as ``mscale`` says.

    ``attn_factor`` is vLLM's and multiplies that magnitude: DeepSeek-R1-0528-Qwen3-8B has its inverse there.
    """
    stated, multiplier = _optional_number(rope, "attention_factor"), _optional_number(rope, "attn_factor")
    if stated is not None or multiplier is None:
        return stated
    return multiplier * _yarn_magnitude(factor, 1.0)


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(rope: CheckpointConfig, rotary_dim: int, common: Mapping[str, Any]) -> RopeScaling:
    lists = {name: rope.numbers(name) for name in ("short_factor", "long_factor")}
    for name, values in lists.items():
        if len(values) != rotary_dim // 2 or min(values) <= 0:
            raise CorruptCheckpoint(
                f"config.json: {name} has {len(values)} values; {rotary_dim // 2} positive ones are needed.",
                param=name,
            )
    return RopeScaling(
        "longrope",
        short_factor=lists["short_factor"],
        long_factor=lists["long_factor"],
        attention_factor=_optional_number(rope, "attention_factor"),
        **common,
    )


def _optional_number(config: CheckpointConfig, key: str) -> float | None:
    return None if config.get(key) is None else config.number(key, low=-1e6, high=1e6)


def read_query_growth(config: CheckpointConfig) -> tuple[float, int] | None:
    """β and L of ``AttentionSpec.query_growth``, which Mistral keeps among the rope keys; None: queries don't grow."""
    rope, key = _rope_values(config), "llama_4_scaling_beta"
    if rope.get(key) is None:
        return None
    return rope.number(key, low=0.0, high=1e6), rope.integer("original_max_position_embeddings", high=1 << 30)


def yarn_softmax_multiplier(rope: RopeSpec) -> float:
    """Factor of DeepSeek's softmax scale: the square of YaRN's magnitude correction over all dimensions.

    Source: https://arxiv.org/abs/2309.00071, section 3.4, as transformers' DeepSeek modules apply it (for any
    scaling that has ``mscale_all_dim``).
    """
    scaling = rope.scaling
    if scaling is None or not scaling.mscale_all_dim:
        return 1.0
    return float(_yarn_magnitude(scaling.factor, scaling.mscale_all_dim) ** 2)
