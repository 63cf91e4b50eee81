"""Search the tensors of a checkpoint: sorted, and with the text that is searched in, once per version of its row."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from inference.modelling.families.config import TensorInfo
from models_registry import selectors
from models_registry.detection.inspection import Inspection

_CACHED_CHECKPOINTS = 8
"""A model of 100,000 tensors takes some 50 MB."""
MAX_QUERY_CHARS = 200
MAX_GROUPS = 500


@dataclass(frozen=True, slots=True)
class TensorPage:
    """Part of the tensors that match.

    Attributes:
        count: Of all that match.
        rows: Name, dtype, shape, size_bytes and file of each.
        size_bytes: Of all that match.
    """

    count: int
    offset: int
    rows: list[dict[str, Any]]
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """The tensors whose names begin alike.

    Attributes:
        prefix: The beginning, without its last dot.
        label: The prefix below that of the group around it.
    """

    prefix: str
    label: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorDetail:
    """What is known of one tensor without reading its values.

    Attributes:
        info: Its header entry.
        parameters: Names of the network's parameters that are made of it.
        codes_of: The weight whose codes, scales or zero points it holds; empty: it holds plain values.
        role: Which of these, as ``EncodedTensor`` names them; empty for plain values.
    """

    name: str
    info: TensorInfo
    parameters: tuple[str, ...]
    codes_of: str = ""
    role: str = ""

    @property
    def size_bytes(self) -> int:
        return self.info.end - self.info.begin


@dataclass(frozen=True, slots=True)
class _Index:
    texts: list[str]
    rows: list[dict[str, Any]]
    layers: dict[int, frozenset[str]]
    parameters: dict[str, tuple[str, ...]]
    encoded: dict[str, tuple[str, str]]


def tensor_page(
    checkpoint_id: uuid.UUID, query: str, *, offset: int, limit: int, layer: int | None = None, prefix: str = ""
) -> TensorPage:
    """Return the tensors whose name, dtype or shape (4x5, 4×5) has all words of a query, in the order of the layers.

    Args:
        layer: Only tensors that this layer's parameters are made of.
        prefix: Only tensors below this part of a name.

    Raises:
        UnknownModel: There is no such checkpoint.
    """
    index = _index(checkpoint_id, selectors.checkpoint_version(checkpoint_id))
    words = query[:MAX_QUERY_CHARS].lower().replace("×", "x").split()
    found = [number for number, text in enumerate(index.texts) if all(word in text for word in words)]
    if layer is not None:
        names = index.layers.get(layer, frozenset())
        found = [number for number in found if index.rows[number]["name"] in names]
    if prefix:
        found = [number for number in found if index.rows[number]["name"].startswith(f"{prefix}.")]
    size = sum(index.rows[number]["size_bytes"] for number in found)
    return TensorPage(len(found), offset, [index.rows[number] for number in found[offset : offset + limit]], size)


def tensor_groups(checkpoint_id: uuid.UUID, prefix: str = "") -> list[Group]:
    """Return the groups right below a prefix, at most ``MAX_GROUPS``; a group in a group alone is one with it.

    Raises:
        UnknownModel: There is no such checkpoint.
    """
    index = _index(checkpoint_id, selectors.checkpoint_version(checkpoint_id))
    begin = f"{prefix}." if prefix else ""
    below = [row for row in index.rows if row["name"].startswith(begin)]
    members: dict[str, list[dict[str, Any]]] = {}
    for row in below:
        head, dot, _ = row["name"][len(begin) :].partition(".")
        if dot:
            members.setdefault(head, []).append(row)
    found = []
    for head, rows in list(members.items())[:MAX_GROUPS]:
        whole = _common_prefix([row["name"] for row in rows], begin + head)
        found.append(Group(whole, whole[len(begin) :], len(rows), sum(row["size_bytes"] for row in rows)))
    return found


def tensor_detail(checkpoint_id: uuid.UUID, name: str) -> TensorDetail | None:
    """Return what the header and the spec say of a tensor; None: there is none of this name.

    Raises:
        UnknownModel: There is no such checkpoint.
    """
    version = selectors.checkpoint_version(checkpoint_id)
    info = _tensors(checkpoint_id, version).get(name)
    if info is None:
        return None
    index = _index(checkpoint_id, version)
    codes_of, role = index.encoded.get(name, ("", ""))
    return TensorDetail(name, info, index.parameters.get(name, ()), codes_of, role)


def layer_sizes(checkpoint_id: uuid.UUID) -> dict[int, int]:
    """Return the bytes of the tensors of each layer.

    Raises:
        UnknownModel: There is no such checkpoint.
    """
    index = _index(checkpoint_id, selectors.checkpoint_version(checkpoint_id))
    sizes = {row["name"]: row["size_bytes"] for row in index.rows}
    return {layer: sum(sizes.get(name, 0) for name in names) for layer, names in index.layers.items()}


def layers_of_tensors(checkpoint_id: uuid.UUID) -> dict[str, int]:
    """Return the layer of each tensor that belongs to one.

    Raises:
        UnknownModel: There is no such checkpoint.
    """
    index = _index(checkpoint_id, selectors.checkpoint_version(checkpoint_id))
    return {name: layer for layer, names in index.layers.items() for name in names}


@lru_cache(maxsize=_CACHED_CHECKPOINTS)
def _tensors(checkpoint_id: uuid.UUID, version: str) -> dict[str, TensorInfo]:
    return selectors.checkpoint_inspection(selectors.checkpoint_get(checkpoint_id)).tensors


@lru_cache(maxsize=_CACHED_CHECKPOINTS)
def _index(checkpoint_id: uuid.UUID, version: str) -> _Index:
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
    texts = [f"{row['name']} {row['dtype']} {'x'.join(map(str, row['shape']))}".lower() for row in rows]
    parameters, layers = _uses(inspection)
    encoded = {part: (item.name, role) for item in inspection.spec.encoded for role, part in item.parts.items()}
    return _Index(texts, rows, layers, parameters, encoded)


def _uses(inspection: Inspection) -> tuple[dict[str, tuple[str, ...]], dict[int, frozenset[str]]]:
    """Return the parameters that are made of each tensor, and the tensors of each layer."""
    parts = {item.name: tuple(item.parts.values()) for item in inspection.spec.encoded}
    parameters: dict[str, list[str]] = {}
    layers: dict[int, set[str]] = {}
    for parameter, source in inspection.spec.parameters.items():
        first, _, rest = parameter.partition(".")
        number = rest.partition(".")[0]
        layer = int(number) if first == "layers" and number.isdecimal() else None
        for weight in source.tensor_names():
            for name in parts.get(weight) or (weight,):
                parameters.setdefault(name, []).append(parameter)
                if layer is not None:
                    layers.setdefault(layer, set()).add(name)
    return (
        {name: tuple(dict.fromkeys(found)) for name, found in parameters.items()},
        {layer: frozenset(names) for layer, names in layers.items()},
    )


def _common_prefix(names: Sequence[str], known: str) -> str:
    """Return the longest beginning, in whole parts, of all names; at least ``known``, and never a whole name."""
    shortest, longest = min(names), max(names)
    prefix = known
    for part in shortest[len(known) + 1 :].split(".")[:-1]:
        longer = f"{prefix}.{part}"
        if not longest.startswith(f"{longer}."):
            break
        prefix = longer
    return prefix


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts layers.2 before layers.10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split("."))
