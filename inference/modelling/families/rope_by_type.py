"""Read the rotations of a family whose windowed layers rotate otherwise than its full ones.

transformers 5 writes an object for each type of layer into ``rope_parameters``. In older files the keys are those of
full layers; windowed ones have a base of their own, or the same, and their positions aren't stretched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inference.errors import CorruptCheckpoint
from inference.modelling.families.config import CheckpointConfig, CheckpointView
from inference.modelling.families.config_values import number_with_evidence
from inference.modelling.families.rope_config import read_rope
from inference.modelling.families.windows import TYPES
from inference.modelling.specs.parts import RopeSpec

ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")


def ropes_by_type(
    view: CheckpointView, read: Callable[..., RopeSpec], *, theta: float, local_theta: float | None = None
) -> Mapping[str, RopeSpec]:
    """The rotation of each of ``TYPES``.

    Args:
        read: ``AttentionDecoder.rope``.
        theta: Default base of full layers.
        local_theta: Default base of windowed layers, which older files call ``rope_local_base_freq``; None: that of
            full layers.

    Raises:
        CorruptCheckpoint: ``rope_parameters`` isn't an object, or stretches windowed layers or a share of their heads.
    """
    config = view.config
    nested = config.get("rope_parameters", default={})
    if not isinstance(nested, Mapping):
        raise CorruptCheckpoint(
            f"config.json: rope_parameters is {str(nested)[:60]!r}; it must be an object.", param="rope_parameters"
        )
    local: Any = nested.get(TYPES[0])
    full: Any = nested.get(TYPES[1])
    plain = view
    if isinstance(full, Mapping):
        rest = {key: value for key, value in config.values.items() if key not in ROPE_KEYS}
        plain = view.with_config({**rest, "rope_parameters": dict(full)})
    found = read(plain, default_theta=theta)
    if not isinstance(local, Mapping):
        local = {} if local_theta is None else {"rope_theta": config.get("rope_local_base_freq", default=local_theta)}
    base = number_with_evidence(
        view,
        "rope.local_theta",
        ("rope_theta",),
        found.theta if local_theta is None else local_theta,
        low=1.001,
        high=1e15,
        config=CheckpointConfig(local),
    )
    kind = local.get("rope_type") or local.get("type") or "default"
    share = CheckpointConfig(local).number("partial_rotary_factor", "rotary_percent", default=1.0)
    if kind != "default" or share != 1.0:
        raise CorruptCheckpoint(
            f"config.json: rope_type of sliding_attention is {str(kind)[:60]!r}, partial_rotary_factor {share:g}; "
            "windowed layers aren't stretched, and rotate whole heads.",
            param="rope_parameters",
        )
    return {TYPES[0]: replace(found, theta=base, scaling=None), TYPES[1]: found}


def rope_of_type(
    view: CheckpointView, kind: str, head_dim: int, defaults: Mapping[str, Mapping[str, Any]], **options: Any
) -> RopeSpec:
    """The rotation of the layers of a type whose heads have a width of their own.

    Args:
        kind: The type, under which ``rope_parameters`` has an object.
        defaults: These objects where config.json has no ``rope_parameters``.
        options: As in ``read_rope``.

    Raises:
        CorruptCheckpoint: ``rope_parameters`` has no object for the type.
    """
    config = view.config
    nested = config.get("rope_parameters", default=defaults)
    own = nested.get(kind) if isinstance(nested, Mapping) else None
    if not isinstance(own, Mapping):
        raise CorruptCheckpoint(
            f"config.json: rope_parameters is {str(nested)[:60]!r}; it must have an object for {kind}.",
            param="rope_parameters",
        )
    rest = {key: value for key, value in config.values.items() if key not in ROPE_KEYS}
    plain = view.with_config({**rest, "rope_parameters": dict(own)})
    return read_rope(plain, head_dim, default_theta=defaults[kind]["rope_theta"], **options)
