"""Search the tensors of a checkpoint: sorted, and with the text that is searched in, once per version of its row."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from models_registry import selectors

_CACHED_CHECKPOINTS = 8
"""A model of 100,000 tensors takes some 50 MB."""
MAX_QUERY_CHARS = 200


@dataclass(frozen=True, slots=True)
class TensorPage:
    """Part of the tensors that match.

    Attributes:
        count: Of all that match.
        rows: Name, dtype, shape, size_bytes and file of each.
    """

    count: int
    offset: int
    rows: list[dict[str, Any]]


def tensor_page(checkpoint_id: uuid.UUID, query: str, *, offset: int, limit: int) -> TensorPage:
    """Return the tensors whose name, dtype or shape (4x5, 4×5) has all words of a query, in the order of the layers.

    Raises:
        UnknownModel: There is no such checkpoint.
    """
    texts, rows = _index(checkpoint_id, selectors.checkpoint_version(checkpoint_id))
    words = query[:MAX_QUERY_CHARS].lower().replace("×", "x").split()
    found = [number for number, text in enumerate(texts) if all(word in text for word in words)]
    return TensorPage(len(found), offset, [rows[number] for number in found[offset : offset + limit]])


@lru_cache(maxsize=_CACHED_CHECKPOINTS)
def _index(checkpoint_id: uuid.UUID, version: str) -> tuple[list[str], list[dict[str, Any]]]:
    inspection = selectors.checkpoint_inspection(selectors.checkpoint_get(checkpoint_id))
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "dtype": info.dtype,
            "shape": list(info.shape),
            "size_bytes": info.end - info.begin,
            "file": info.file,
        }
        for name, info in sorted(inspection.tensors.items(), key=lambda item: _natural(item[0]))
    ]
    return [f"{row['name']} {row['dtype']} {'x'.join(map(str, row['shape']))}".lower() for row in rows], rows


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts layers.2 before layers.10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split("."))
