"""Names of LoRA adapters: requests name one as ``BASE:NAME``, BASE being a checkpoint or an alias."""

from __future__ import annotations

import re

from inference.errors import InvalidRequest
from models_registry.models import Adapter

MAX_ADAPTER_CHARS = 31
"""Longest name of an adapter: with its base's and the colon it has the 128 characters of usage records."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_RESERVED = "latest"
"""Clients of Ollama put it behind names of models."""


def full_name(base: str, adapter: str) -> str:
    """Return the name by which requests call an adapter."""
    return f"{base}:{adapter}"


def split_name(name: str) -> tuple[str, str] | None:
    """Return base and adapter of ``BASE:NAME``; None: it has no such form. The base may have colons itself."""
    base, colon, adapter = name.rpartition(":")
    return (base, adapter) if colon and base and _NAME.match(adapter) else None


def check_adapter_name(name: str) -> str:
    """Return ``name`` if it is a legal name of an adapter.

    Raises:
        InvalidRequest: It is empty, too long, has other characters, or is ``latest``.
    """
    if len(name) > MAX_ADAPTER_CHARS or not _NAME.match(name) or name == _RESERVED:
        raise InvalidRequest(
            f"the adapter's name is {name[:60]!r}; it must be 1 to {MAX_ADAPTER_CHARS} letters, digits, dots, dashes "
            f"or underscores, begin with a letter or digit, and not be {_RESERVED!r}.",
            param="name",
        )
    return name


def names_adapter(name: str) -> bool:
    """Whether an adapter is called so, by its base's own name."""
    parts = split_name(name)
    return parts is not None and Adapter.objects.filter(base__served_model_name=parts[0], name=parts[1]).exists()
