"""Inspect a checkpoint at a path on the server that an account enters, and register it.

Its paths are those in the directories of the settings, as for watched runs and adapters.
"""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.errors import Conflict, InvalidRequest, Unavailable
from inference.host.held_place import held_place
from inference.models.readable_rows import readable_rows
from models_registry import services
from models_registry.adapters import MAX_PATH_CHARS
from models_registry.chat_templates import check_before_inspection
from models_registry.detection.child import inspect_in_child
from models_registry.detection.describe import describe
from models_registry.detection.directory import MAX_DIRECTORY_ENTRIES
from models_registry.detection.facts import FACTS, canonical_name, check_overrides
from models_registry.layer_words import legend
from models_registry.models import Checkpoint
from models_registry.names import suggest_name
from models_registry.runs.allowed import allowed_directories, check_allowed
from models_registry.tokenizer_sources import with_source_name, with_source_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import QueryDict

MAX_INSPECTIONS = 2
"""At a time in a process; each may take a minute and 2 GiB."""
WAIT_S = 10.0
_inspections = threading.BoundedSemaphore(MAX_INSPECTIONS)


def checked_place(text: str) -> Path:
    """Return the absolute path of a checkpoint that the settings allow, with all that lies in its directory.

    Links are kept, because hub caches consist of links, but none may lead out of the allowed directories.

    Raises:
        InvalidRequest: It can't be a path, or can't be read.
        PermissionRefused: The settings don't name a directory with this path, or a file in it leads elsewhere.
    """
    if not text or "\0" in text or len(text) > MAX_PATH_CHARS:
        raise InvalidRequest("path is no path of a directory or file.", param="path")
    try:
        place = Path("/", text.lstrip("/")) if text.startswith("/") else Path(text).absolute()
        place = place.resolve() if ".." in place.parts else place
        check_allowed(place, param="path")  # before anything is read: a refusal doesn't say what is there
        directory = place if place.is_dir() else place.parent
        check_allowed(directory, param="path")
        for number, entry in enumerate(directory.iterdir() if directory.is_dir() else ()):
            if number >= MAX_DIRECTORY_ENTRIES:
                raise InvalidRequest(
                    f"the directory of path has more than {MAX_DIRECTORY_ENTRIES} entries; move the checkpoint to one "
                    "of its own.",
                    param="path",
                )
            if entry.is_symlink() and not entry.is_dir():
                check_allowed(entry, param="path")
    except (OSError, RuntimeError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"path {text[:300]!r} can't be read: {reason}.", param="path") from None
    return place


def overrides_of(posted: QueryDict) -> dict[str, Any]:
    """Return the facts that are set: those that were set before and still are ticked, and the one that is entered.

    Raises:
        InvalidRequest: A fact isn't known, or its value isn't legal.
    """
    found: dict[str, Any] = {}
    for item in posted.getlist("set"):
        try:
            item.encode()  # no lone surrogates
            facts = json.loads(item)
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict):
            raise InvalidRequest("a fact that was set can't be read; set it again.", param="set")
        found |= facts
    fact, text = posted.get("fact", ""), posted.get("value", "").strip()
    if fact and text:
        found[fact] = _value(fact, text)
    return check_overrides(found)


def _one_of_few() -> AbstractContextManager[None]:
    refusal = Unavailable(f"{MAX_INSPECTIONS} paths are being inspected; try again later.", retry_after_s=10)
    return held_place(_inspections, refusal, wait_s=WAIT_S)


def report(place: Path, overrides: Mapping[str, Any], *, name: str = "") -> dict[str, Any]:
    """Return what an inspection of the files finds, for the page; nothing is stored.

    Raises:
        CheckpointError: The files aren't a checkpoint that can be served.
    """
    check_before_inspection(overrides)
    known = _known(place)
    with _one_of_few():
        inspection = inspect_in_child(place, overrides=with_source_path(overrides))
    checked_place(str(place))  # what was read is shown only if no link has led out meanwhile
    inspection = with_source_name(inspection, overrides)
    about = describe(inspection)
    return {
        "report": about,
        "legend": legend(about["layers"]),
        "known": known,
        "name": name or services.free_name(suggest_name(place.name)),
    }


def register(place: Path, *, overrides: Mapping[str, Any], name: str, author: Any) -> Checkpoint:
    """Inspect the files once more and register them under a name, or under that of the path where it is empty.

    Raises:
        CheckpointError: The files aren't a checkpoint that can be served; nothing is stored.
        Conflict: The path is registered already, or the name is taken.
        InvalidRequest: The name isn't legal.
    """
    known = _known(place)
    if known is not None:
        raise Conflict(f"{place} is registered already, as {known.served_model_name}.", param="path")
    check_before_inspection(overrides)
    with _one_of_few():
        return services.checkpoint_register(
            path=place,
            served_model_name=name or None,
            overrides=overrides,
            author=author,
            inspect=inspect_in_child,
            confirm=_check_again,
        )


def empty_form() -> dict[str, Any]:
    """Return what the form shows before anything is entered."""
    return {
        "allowed": [str(place) for place in allowed_directories()],
        "facts": [(name, rule.meaning) for name, rule in FACTS.items()],
        "path": "",
        "name": "",
        "overrides": {},
    }


def _check_again(row: Checkpoint) -> None:
    """Refuse a row whose files have become links that lead out while they were inspected."""
    checked_place(row.path)


def _known(place: Path) -> Checkpoint | None:
    rows: list[Checkpoint] = readable_rows(Checkpoint.objects.filter(path=str(place)), 1)
    return rows[0] if rows else None


def _value(fact: str, text: str) -> Any:
    """Return an entered text as its fact takes it; what isn't a number is left to the check of the facts."""
    rule = FACTS.get(canonical_name(fact))
    if rule is None or rule.kind == "string":
        return None if rule is not None and rule.nullable and text == "none" else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
