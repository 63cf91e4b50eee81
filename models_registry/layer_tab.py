"""What the layers' tab of a model's page shows: a ribbon by kind, bytes or state, and the tensors of one layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from inference.host.units import format_bytes, format_count
from models_registry.models import Checkpoint
from models_registry.page_numbers import number_of
from models_registry.tensor_index import layer_sizes
from models_registry.tensor_tab import tensors_context

MEASURES = {
    "kind": "all alike",
    "bytes": "bytes of the file",
    "parameters": "parameters",
    "token": "state per token",
    "sequence": "state per sequence",
}
"""What the width of a layer stands for."""
ZOOMS = (1, 2, 4, 8)
RIBBON_WIDTH = 1000
GAP = 1.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A layer in the ribbon: its place, and what it measures in words."""

    layer: Mapping[str, Any]
    x: float
    width: float
    words: str


def layers_context(checkpoint: Checkpoint, layers: Sequence[Mapping[str, Any]], query: QueryDict) -> dict[str, Any]:
    """Return the ribbon that an address asks for, and the chosen layer with its tensors.

    Args:
        layers: As ``layer_words.layer_rows`` returns them.
        query: ``by``: one of ``MEASURES``; ``zoom``: one of ``ZOOMS``; ``layer``: a number.
    """
    by = query.get("by", "kind")
    by = by if by in MEASURES else "kind"
    zoom = number_of(query.get("zoom"), 1, 1, ZOOMS[-1])
    zoom = zoom if zoom in ZOOMS else 1
    number = number_of(query.get("layer"), -1, 0, max(len(layers) - 1, 0))
    chosen = layers[number] if 0 <= number < len(layers) else None
    sizes = layer_sizes(checkpoint.pk)
    at = ZOOMS.index(zoom)
    return {
        "segments": segments(layers, sizes, by),
        "by": by,
        "measures": MEASURES.items(),
        "zoom": zoom,
        "closer": ZOOMS[at + 1] if at + 1 < len(ZOOMS) else None,
        "farther": ZOOMS[at - 1] if at else None,
        "chosen": chosen,
        **(tensors_context(checkpoint, query) if chosen else {}),
        "layer": number if chosen else None,
    }


def segments(layers: Sequence[Mapping[str, Any]], sizes: Mapping[int, int], by: str) -> list[Segment]:
    """Lay out the layers side by side, as wide as what they measure; those that measure nothing are a line."""
    values = [_measured(layer, sizes, by) for layer in layers]
    total = sum(values)
    available = RIBBON_WIDTH - GAP * len(layers)
    place, found = 0.0, []
    for layer, value in zip(layers, values, strict=True):
        width = max(available * value / total, 0.5) if total else available / max(len(layers), 1)
        found.append(Segment(layer, round(place, 2), round(width, 2), _words(value, by)))
        place += width + GAP
    return found


def _measured(layer: Mapping[str, Any], sizes: Mapping[int, int], by: str) -> int:
    if by == "kind":
        return 1
    if by == "bytes":
        return sizes.get(layer["number"], 0)
    name = "num_parameters" if by == "parameters" else f"state_bytes_per_{by}"
    return int(layer[name])


def _words(value: int, by: str) -> str:
    if by == "kind":
        return ""
    return f", {format_count(value) if by == 'parameters' else format_bytes(value)}"
