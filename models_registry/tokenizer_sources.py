"""Find the checkpoint whose tokenizer another one uses, by the override ``tokenizer_from``.

People name a checkpoint; inspections get its path; the row of the override refers to it, so that it can't be deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference.errors import Conflict, InvalidRequest, UnknownModel
from inference.models.readable_rows import readable_rows
from models_registry.adapters import MAX_PATH_CHARS
from models_registry.detection.facts import TOKENIZER_FROM
from models_registry.detection.inspection import Inspection
from models_registry.models import Checkpoint
from models_registry.runs.allowed import check_allowed
from models_registry.selectors import checkpoint_get_by_name

MAX_SHOWN = 5
"""Names of borrowers in a refusal."""


def source_find(name: str) -> Checkpoint:
    """Return the registered checkpoint with this name, alias or path.

    Raises:
        InvalidRequest: There is none.
    """
    try:
        return checkpoint_get_by_name(name)
    except UnknownModel:
        path = str(Path(name).expanduser().absolute())
        rows = [] if "\0" in name else readable_rows(Checkpoint.objects.filter(path=path), 1)
    if not rows:
        raise InvalidRequest(
            f"{TOKENIZER_FROM} is {name[:120]!r}, which is not registered; name a registered model.",
            param=TOKENIZER_FROM,
        )
    return rows[0]


def check_vocabulary(place: Path | None, overrides: Mapping[str, Any]) -> None:
    """Check that a tokenizer's file that a page or a request names is one that the settings allow.

    Args:
        place: The checkpoint, in whose directory a relative path is; None: its files aren't here yet.

    Raises:
        InvalidRequest: It can't be a path.
        PermissionRefused: The settings don't name a directory with it.
    """
    text = str(overrides.get("vocabulary", ""))
    if "/" not in text:
        return  # a known vocabulary, or a file beside the checkpoint's
    if "\0" in text or text.startswith("~") or len(text) > MAX_PATH_CHARS:
        raise InvalidRequest(f"vocabulary {text[:80]!r} is no path of a file.", param="vocabulary")
    directory = Path("/") if place is None else place if place.is_dir() else place.parent
    try:
        found = (directory / text).resolve()
        is_beside = place is not None and found.is_relative_to(directory.resolve())
    except (OSError, RuntimeError, ValueError):
        raise InvalidRequest(f"vocabulary {text[:80]!r} is no path of a file.", param="vocabulary") from None
    if not is_beside:
        check_allowed(found, param="vocabulary")


def with_source_path(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with the path of the checkpoint that they name, as inspections take it.

    Raises:
        InvalidRequest: It is not registered.
    """
    if TOKENIZER_FROM not in overrides:
        return dict(overrides)
    return {**overrides, TOKENIZER_FROM: source_find(overrides[TOKENIZER_FROM]).path}


def with_source_name(inspection: Inspection, overrides: Mapping[str, Any]) -> Inspection:
    """Return the inspection with the served name of the other checkpoint in its facts, where it has the path."""
    if TOKENIZER_FROM not in overrides:
        return inspection
    name = source_find(overrides[TOKENIZER_FROM]).served_model_name
    facts = (replace(fact, value=name) if fact.name == TOKENIZER_FROM else fact for fact in inspection.facts)
    return replace(inspection, facts=tuple(facts))


def source_digests(overrides: Mapping[str, Any]) -> dict[str, str]:
    """Return the known SHA-256 of the other checkpoint's files, by absolute path."""
    if TOKENIZER_FROM not in overrides:
        return {}
    source = source_find(overrides[TOKENIZER_FROM])
    return {str(Path(source.directory) / stamp["name"]): stamp["sha256"] for stamp in source.file_stamps}


def check_not_borrowed(checkpoint: Checkpoint) -> None:
    """Refuse to delete a checkpoint whose tokenizer others use.

    Raises:
        Conflict: Names the others.
    """
    names = sorted({row.checkpoint.served_model_name for row in checkpoint.borrowers.select_related("checkpoint")})
    if names:
        shown = ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
        raise Conflict(
            f"{checkpoint.served_model_name} has the tokenizer of {shown}; take their override {TOKENIZER_FROM} away, "
            "or delete them first.",
            param="model",
        )
