"""What the layers' tab of a model's page shows: a ribbon by kind, bytes, compute or state, and one layer's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from inference.host.units import format_bytes, format_count
from inference.modelling.operations import LayerMacs, layer_macs, macs_outside_layers
from inference.modelling.spec import ModelSpec
from models_registry.models import Checkpoint
from models_registry.page_numbers import DEFAULT_CONTEXT, number_of
from models_registry.tensor_index import layer_sizes
from models_registry.tensor_tab import tensors_context

MEASURES = {
    "kind": "all alike",
    "bytes": "bytes of the file",
    "parameters": "parameters",
    "compute": "share of compute",
    "token": "state per token",
    "sequence": "state per sequence",
}
"""What the width of a layer stands for."""
ZOOMS = (1, 2, 4, 8)
RIBBON_WIDTH = 1000
GAP = 1.0
COMPUTE_PARTS = ("projections", "experts", "convolution", "attention", "recurrence")


@dataclass(frozen=True, slots=True)
class Segment:
    """A layer in the ribbon: its place, and what it measures in words."""

    layer: Mapping[str, Any]
    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Compute:
    """The multiply-adds of one token.

    Attributes:
        context: Tokens that it sees.
        layers: Those of each layer.
        outer: Those outside of the layers.
    """

    context: int
    layers: Sequence[LayerMacs]
    outer: int

    @property
    def total(self) -> int:
        """Those of the whole pass."""
        return self.outer + sum(layer.total for layer in self.layers)

    def words(self, number: int) -> str:
        """Return a layer's number of them, its share of the pass and its parts."""
        found = self.layers[number]
        parts = [f"{name} {format_count(getattr(found, name))}" for name in COMPUTE_PARTS if getattr(found, name)]
        return f"{format_count(found.total)} ({found.total / self.total:.1%}): {', '.join(parts) or 'none'}"


def layers_context(
    checkpoint: Checkpoint, spec: ModelSpec, layers: Sequence[Mapping[str, Any]], query: QueryDict
) -> dict[str, Any]:
    """Return the ribbon that an address asks for, and the chosen layer with its tensors.

    Args:
        layers: As ``layer_words.layer_rows`` returns them.
        query: ``by``: one of ``MEASURES``; ``zoom``: one of ``ZOOMS``; ``layer``: a number; ``context``: the tokens
            that a token sees, for the compute.
    """
    longest = max(checkpoint.max_position_embeddings, 1)
    context = number_of(query.get("context"), min(DEFAULT_CONTEXT, longest), 1, longest)
    compute = Compute(context, layer_macs(spec, context), macs_outside_layers(spec))
    by = query.get("by", "kind")
    by = by if by in MEASURES else "kind"
    zoom = number_of(query.get("zoom"), 1, 1, ZOOMS[-1])
    zoom = zoom if zoom in ZOOMS else 1
    number = number_of(query.get("layer"), -1, 0, max(len(layers) - 1, 0))
    chosen = layers[number] if 0 <= number < len(layers) else None
    sizes = layer_sizes(checkpoint.pk)
    at = ZOOMS.index(zoom)
    return {
        "segments": segments(layers, sizes, by, compute),
        "compute": compute if by == "compute" else None,
        "outer_share": f"{compute.outer / compute.total:.1%}" if compute.total else "",
        "context": context,
        "context_query": f"&context={context}" if "context" in query else "",
        "longest_context": longest,
        "compute_words": compute.words(number) if chosen else "",
        "by": by,
        "measures": MEASURES.items(),
        "zoom": zoom,
        "closer": ZOOMS[at + 1] if at + 1 < len(ZOOMS) else None,
        "farther": ZOOMS[at - 1] if at else None,
        "chosen": chosen,
        **(tensors_context(checkpoint, query) if chosen else {}),
        "layer": number if chosen else None,
    }


def segments(layers: Sequence[Mapping[str, Any]], sizes: Mapping[int, int], by: str, compute: Compute) -> list[Segment]:
    """Lay out the layers side by side, as wide as what they measure; those that measure nothing are a line."""
    values = [_measured(layer, sizes, by, compute) for layer in layers]
    total = sum(values)
    available = RIBBON_WIDTH - GAP * len(layers)
    place, found = 0.0, []
    for layer, value in zip(layers, values, strict=True):
        width = max(available * value / total, 0.5) if total else available / max(len(layers), 1)
        found.append(Segment(layer, round(place, 2), round(width, 2), _words(value, by, compute)))
        place += width + GAP
    return found


def _measured(layer: Mapping[str, Any], sizes: Mapping[int, int], by: str, compute: Compute) -> int:
    if by == "kind":
        return 1
    if by == "bytes":
        return sizes.get(layer["number"], 0)
    if by == "compute":
        return compute.layers[int(layer["number"])].total
    name = "num_parameters" if by == "parameters" else f"state_bytes_per_{by}"
    return int(layer[name])


def _words(value: int, by: str, compute: Compute) -> str:
    if by == "kind":
        return ""
    if by == "compute":
        return f", {format_count(value)} multiply-adds, {value / compute.total:.1%} of a token's"
    return f", {format_count(value) if by == 'parameters' else format_bytes(value)}"
