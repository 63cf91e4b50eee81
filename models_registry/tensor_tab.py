"""What the tensors' tab of a model's page shows: a list or a tree of them, and one that is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from inference.errors import BlazrError
from models_registry.models import Checkpoint
from models_registry.page_numbers import number_of
from models_registry.tensor_index import MAX_QUERY_CHARS, TensorDetail, tensor_detail, tensor_groups, tensor_page
from models_registry.tensor_values import is_in_blocks, tensor_statistics, why_not

TENSORS_SHOWN = 50
MAX_NAME_CHARS = 512
BAR_WIDTH, BAR_HEIGHT = 10, 120
"""Of a bar of the histogram."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram, with its place in the drawing."""

    x: int
    y: float
    height: float
    low: float
    high: float
    count: int


def tensors_context(checkpoint: Checkpoint, query: QueryDict) -> dict[str, Any]:
    """Return the tensors that an address asks for.

    Args:
        query: ``q``: words; ``layer``: a number; ``prefix``: of the tree, whose top is ``.``; ``offset``;
            ``tensor``: the name of the open one; ``figures``: ``1`` reads its values, ``weight`` decodes the quantised
            weight that it is a part of.
    """
    text = query.get("q", "")[:MAX_QUERY_CHARS]
    offset = number_of(query.get("offset"), 0, 0, 1 << 31)
    layer = number_of(query.get("layer"), -1, 0, 1 << 20)
    place = query.get("prefix", "")[:MAX_NAME_CHARS]
    prefix = place.strip(".")
    groups = tensor_groups(checkpoint.pk, prefix) if place else []
    page = tensor_page(
        checkpoint.pk,
        text,
        offset=offset,
        limit=TENSORS_SHOWN,
        layer=layer if layer >= 0 else None,
        prefix=prefix,
    )
    last = offset + len(page.rows)
    here = QueryDict(mutable=True)
    here["tab"] = query.get("tab", "tensors")
    values = {"q": text, "layer": str(layer) if layer >= 0 else "", "prefix": place, "by": query.get("by", "")[:16]}
    here.update({name: value for name, value in values.items() if value})
    return {
        "q": text,
        "layer": layer if layer >= 0 else None,
        "place": place,
        "crumbs": _crumbs(prefix),
        "groups": groups,
        "page": page,
        "first": offset + 1,
        "last": last,
        "offset": offset,
        "back": max(0, offset - TENSORS_SHOWN) if offset else None,
        "next": last if last < page.count else None,
        "address": here.urlencode(),
        **open_tensor(checkpoint, query),
    }


def open_tensor(checkpoint: Checkpoint, query: QueryDict) -> dict[str, Any]:
    """Return the open tensor with its figures, if the address asks for them."""
    name = query.get("tensor", "")[:MAX_NAME_CHARS]
    detail = tensor_detail(checkpoint.pk, name) if name else None
    if detail is None:
        return {}
    in_blocks, of_weight = is_in_blocks(detail.info), query.get("figures") == "weight" and bool(detail.codes_of)
    found: dict[str, Any] = {
        "tensor": detail,
        "cannot": "" if in_blocks or of_weight else why_not(detail.info),
        "caveat": "" if of_weight else _caveat(detail),
        "in_blocks": in_blocks,
        "decoded": detail.codes_of if of_weight else "",
    }
    if (query.get("figures") == "1" or of_weight) and not found["cannot"]:
        try:
            figures = tensor_statistics(checkpoint, detail.name, of_weight=of_weight)
            found |= {"figures": figures, "bars": bars(figures["histogram"]), "shares": _shares(figures)}
        except BlazrError as error:
            found["figures_problem"] = error.message
    return found


def bars(histogram: dict[str, Any] | None) -> list[Bar]:
    """Lay out a histogram, the highest bar in the full height."""
    if histogram is None:
        return []
    low, counts = histogram["low"], histogram["bins"]
    width = (histogram["high"] - low) / len(counts)
    most = max(*counts, 1)
    return [
        Bar(
            x=number * BAR_WIDTH,
            y=round(BAR_HEIGHT * (1 - count / most), 2),
            height=round(BAR_HEIGHT * count / most, 2),
            low=low + number * width,
            high=low + (number + 1) * width,
            count=count,
        )
        for number, count in enumerate(counts)
    ]


def _caveat(detail: TensorDetail) -> str:
    if not detail.codes_of:
        return ""
    return f"It holds the {detail.role} of the quantised weight {detail.codes_of}: its values aren't the weight's."


def _shares(figures: dict[str, Any]) -> dict[str, float]:
    return {name: 100 * figures[name] / figures["num_read"] for name in ("zeros", "nans", "infinities")}


def _crumbs(prefix: str) -> list[tuple[str, str]]:
    """Return label and prefix of each group around the present one, and of itself."""
    parts = prefix.split(".") if prefix else []
    return [(part, ".".join(parts[: number + 1])) for number, part in enumerate(parts)]
