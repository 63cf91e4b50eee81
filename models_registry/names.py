"""Check and suggest served model names, which are labels of a safe alphabet and never paths.

A name appears in URLs, logs, metric labels and shell commands; no path is ever derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import PurePosixPath

from inference.errors import InvalidRequest
from models_registry.hub_reference import HubReference, is_hub_reference
from models_registry.models import MAX_NAME_CHARS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*\Z")
_FOREIGN = re.compile(r"[^A-Za-z0-9._:-]+")
_WHEEL = re.compile(r"pypi:(?:llm-)?(.+?)(?:-gguf)?(?:==.*)?\Z")
_GGUF = "-gguf"
_WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".ggml", ".bin")


def check_name(name: str, *, param: str = "served_model_name") -> str:
    """Return ``name`` if it is a legal served model name.

    Args:
        param: Name of the value in the request.

    Raises:
        InvalidRequest: The name is empty, too long or has other characters.
    """
    if not name or len(name) > MAX_NAME_CHARS or not _NAME.match(name):
        raise InvalidRequest(
            f"{param} is {name[:60]!r}; it must be 1 to {MAX_NAME_CHARS} letters, digits, "
            "dots, dashes, underscores or colons, and begin with a letter or digit.",
            param=param,
        )
    return name


def suggest_name(text: str) -> str:
    """Return a legal name made of the last component of a path, a hub id or a folder's name, or of a wheel's name.

    ``pypi:llm-NAME==VERSION`` and ``pypi:NAME-gguf`` become ``NAME``, ``ORG/NAME-GGUF:TAG`` becomes ``NAME-TAG``.
    """
    last = PurePosixPath(text.replace("\\", "/")).name
    if is_hub_reference(text):
        last = _of_hub(HubReference.parse(text))
    wheel = _WHEEL.match(last)
    if wheel is not None:
        last = wheel[1]
    for suffix in _WEIGHT_SUFFIXES:
        last = last.removesuffix(suffix)
    name = _FOREIGN.sub("-", last).strip("-._:")[:MAX_NAME_CHARS].rstrip("-._:")
    return name or "model"


def _of_hub(reference: HubReference) -> str:
    name = reference.repo_id.rpartition("/")[2]
    if reference.names_file:
        return PurePosixPath(reference.choice).name
    name = name[: -len(_GGUF)] if name.lower().endswith(_GGUF) and len(name) > len(_GGUF) else name
    return f"{name}-{reference.choice}" if reference.choice else name


def make_unique(name: str, taken: Container[str]) -> str:
    """Return ``name``, or the first of ``name-2``, ``name-3`` … that is not taken."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        suffix = f"-{number}"
        candidate = name[: MAX_NAME_CHARS - len(suffix)] + suffix
    return candidate
