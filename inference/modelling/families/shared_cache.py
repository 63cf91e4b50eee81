"""Find the layers that read the keys and values of an earlier layer, as Gemma 3n and Gemma 4 have at their end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.errors import CorruptCheckpoint
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import MAX_LAYERS, CheckpointView
from inference.modelling.families.decoder_layout import DecoderLayout

KEY = "num_kv_shared_layers"


def kv_sources(view: CheckpointView, types: Sequence[str], default: int) -> tuple[int | None, ...]:
    """For each layer the number of the one whose keys and values it reads; None: its own.

    The last ``num_kv_shared_layers`` layers read those of the last layer of their type before them.

    Raises:
        CorruptCheckpoint: There is no such layer.
    """
    first = len(types) - view.config.integer(KEY, default=default, low=0, high=MAX_LAYERS)
    sources: list[int | None] = [None] * len(types)
    for number in range(max(first, 0), len(types)):
        before = [other for other in range(max(first, 0)) if types[other] == types[number]]
        if not before:
            raise CorruptCheckpoint(
                f"config.json: {KEY} is {len(types) - first} of {len(types)}, which leaves no {types[number]} layer "
                f"whose keys and values layer {number} could read; lower it.",
                param=KEY,
            )
        sources[number] = before[-1]
    return tuple(sources)


def unused_projections(layout: DecoderLayout, sources: Sequence[int | None]) -> IgnoredTensors:
    """Projections and norms of keys and values that files have for layers without a use of them."""
    numbers = "|".join(str(number) for number, source in enumerate(sources) if source is not None)
    names = rf"{re.escape(layout.prefix + layout.layers)}({numbers or 'none'})\.self_attn\.[kv]_(proj|norm)\."
    return IgnoredTensors(re.compile(names), "keys and values of layers that read another layer's")
