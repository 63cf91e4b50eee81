"""Find the layers that see the keys which an earlier layer's indexer chose, as GLM-5 and others have them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.errors import CorruptCheckpoint
from inference.modelling.families.checks import IgnoredTensors
from inference.modelling.families.config import CheckpointView
from inference.modelling.families.decoder_layout import DecoderLayout

FULL, SHARED = "full", "shared"
KEY = "indexer_types"
TYPE_KEYS = (KEY, "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
"""config.json's keys of ``choice_sources`` and ``scheduled_types``."""


def choice_sources(view: CheckpointView, layout: DecoderLayout, default: Sequence[str]) -> tuple[int | None, ...]:
    """For each layer the number of the one whose indexer it goes by; None: it has its own.

    Args:
        default: ``full`` or ``shared`` for each layer, where config.json doesn't say.

    Raises:
        CorruptCheckpoint: Another word, not one for each layer, or the first layer shares.
    """
    types = view.config.strings(KEY) or tuple(default)
    if len(types) < layout.num_layers or not set(types) <= {FULL, SHARED} or types[0] != FULL:
        raise CorruptCheckpoint(
            f"config.json: {KEY} needs {FULL!r} or {SHARED!r} for each of {layout.num_layers} layers, the first one "
            f"{FULL!r}; it is {str(list(types))[:80]}.",
            param=KEY,
        )
    sources: list[int | None] = []
    newest = 0
    for number in range(layout.num_layers):
        newest = number if types[number] == FULL else newest
        sources.append(None if types[number] == FULL else newest)
    return tuple(sources)


def scheduled_types(view: CheckpointView, count: int) -> list[str]:
    """``full`` or ``shared`` for each layer: by a pattern, or one of so many layers behind the first ones."""
    pattern = view.config.get("index_topk_pattern")
    if isinstance(pattern, str):
        return [{"F": FULL, "S": SHARED}.get(letter, letter) for letter in pattern]
    if pattern is not None:
        return list(view.config.strings("index_topk_pattern"))
    step = view.config.integer("index_topk_freq", default=1, low=0)
    first = view.config.integer("index_skip_topk_offset", default=2, low=0)
    return [SHARED if max(number - first + 1, 0) % max(step, 1) else FULL for number in range(count)]


def unused_indexers(layout: DecoderLayout, sources: Sequence[int | None]) -> tuple[IgnoredTensors, ...]:
    """Indexers that files may have for layers that go by another one."""
    numbers = "|".join(str(number) for number, source in enumerate(sources) if source is not None)
    names = rf"{re.escape(layout.prefix + layout.layers)}({numbers or 'none'})\.self_attn\.indexer\."
    return (IgnoredTensors(re.compile(names), "indexers of layers that go by another layer's"),)
