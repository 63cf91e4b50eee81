"""Turn specifications, which are trees of frozen dataclasses, to JSON and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def encode(value: Any) -> Any:
    """Return a value for JSON: dataclasses become objects with a ``_`` member for the class; defaults are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        encoded: dict[str, Any] = {"_": type(value).__name__}
        for item in fields(value):
            member = getattr(value, item.name)
            if member != item.default:
                encoded[item.name] = encode(member)
        return encoded
    if isinstance(value, Mapping):
        return {str(key): encode(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return [encode(member) for member in value]
    if isinstance(value, float) and math.isinf(value):
        return {"_": "Infinity", "negative": value < 0}
    return value


def decode(value: Any, classes: Mapping[str, type]) -> Any:
    """Return what ``encode`` was given; ``classes`` has the dataclasses by their names."""
    if isinstance(value, list):
        return tuple(decode(member, classes) for member in value)
    if not isinstance(value, Mapping):
        return value
    name = value.get("_")
    if name is None:
        return {key: decode(member, classes) for key, member in value.items()}
    if name == "Infinity":
        return -math.inf if value.get("negative") else math.inf
    return classes[name](**{key: decode(member, classes) for key, member in value.items() if key != "_"})
