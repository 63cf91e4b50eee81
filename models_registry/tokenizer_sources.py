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
from models_registry.detection.facts import TOKENIZER_FROM
from models_registry.detection.inspection import Inspection
from models_registry.models import Checkpoint
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
