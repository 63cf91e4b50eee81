"""Check members of JSON objects in request bodies; every error names the path of the member."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from inference.errors import InvalidRequest, UnsupportedFeature, shown


def check_members(path: str, value: Iterable[str], known: Collection[str]) -> None:
    """Refuse members of the object at ``path`` that aren't known.

    Raises:
        UnsupportedFeature: With the path of the member in ``param``.
    """
    for name in value:
        if name not in known:
            raise unsupported(f"{path}.{name[:80]}")


def unsupported(path: str) -> UnsupportedFeature:
    """Return the error of a member that isn't supported."""
    return UnsupportedFeature(f"{path} is not supported; remove it.", param=path)


def string_member(path: str, value: Mapping[str, Any], name: str) -> str:
    """Return the string ``name`` of the object at ``path``.

    Raises:
        InvalidRequest: It is missing, or no string.
    """
    found = value.get(name)
    if not isinstance(found, str):
        raise InvalidRequest(f"{path}.{name} must be a string, got {shown(found)}.", param=f"{path}.{name}")
    return found


def text_content(texts: list[str]) -> str | list[dict[str, str]]:
    """Return one text as it is, and several as the text parts of a chat message."""
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
