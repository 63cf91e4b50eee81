"""Lay out parts of a memory side by side in a bar, for ``registry/_memory_bar.html``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BAR_WIDTH = 1000


def bar_parts(sizes: Iterable[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Return the parts, each with its place in a bar of ``BAR_WIDTH``, as wide as its share; empty: they are all 0.

    Args:
        sizes: Name in words, kind (``share-KIND`` is its class) and bytes of each part.
    """
    rows = list(sizes)
    whole, begin, parts = sum(size for _, _, size in rows), 0, []
    if not whole:
        return []
    for name, kind, size in rows:
        x, end = (round(BAR_WIDTH * at / whole) for at in (begin, begin + size))
        parts.append({"name": name, "size": size, "kind": kind, "x": x, "width": end - x})
        begin += size
    return parts
