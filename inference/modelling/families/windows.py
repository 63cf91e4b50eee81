"""Find the width of sliding windows and the layers that have one."""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import CorruptCheckpoint, UnsupportedArchitecture
from inference.modelling.families.config import CheckpointView, Confidence

DEFAULT_WINDOW = 4096
"""transformers' window for a config that has windows but doesn't mention their width; null says: none."""
DEFAULT_MAX_WINDOW_LAYERS = 28
"""The layer from which a windowed Qwen's layers are of the other kind, when config.json doesn't say."""


TYPES = ("sliding_attention", "full_attention")
"""The types of layers of a family with windows in some of them."""


def layer_types(view: CheckpointView, num_layers: int, allowed: Sequence[str]) -> tuple[str, ...] | None:
    """config.json's ``layer_types``, one of ``allowed`` for each layer; None when the key is absent.

    Raises:
        CorruptCheckpoint: Not one entry for each layer.
        UnsupportedArchitecture: An entry that the family doesn't have.
    """
    if "layer_types" not in view.config:
        return None
    types = view.config.strings("layer_types")
    if len(types) != num_layers:
        raise CorruptCheckpoint(
            f"config.json: layer_types has {len(types)} entries for {num_layers} layers.", param="layer_types"
        )
    for kind in types:
        if kind not in allowed:
            raise UnsupportedArchitecture(
                f"config.json: layer type {kind[:60]!r} is not supported here; supported are {', '.join(allowed)}.",
                param="layer_types",
            )
    return types


def full_every(every: int, num_layers: int) -> tuple[str, ...]:
    """The type of each layer where the last of every so many is full."""
    return tuple(TYPES[not (number + 1) % every] for number in range(num_layers))


def window_of_each_layer(types: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window for the layers of type ``sliding_attention``, None for the others."""
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def sliding_window(view: CheckpointView, *, default: int | None = None) -> int | None:
    """The window in positions; null and 0 mean none.

    Args:
        default: When the key is absent.
    """
    config = view.config
    if "sliding_window" not in config.values:
        if default is not None:
            view.facts.add(
                "attention.sliding_window", default, "sliding_window is not in config.json; default", Confidence.LOW
            )
        return default
    if config.get("sliding_window") is None:
        return None
    return config.integer("sliding_window", low=0, high=1 << 30) or None
