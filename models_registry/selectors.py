"""Look up checkpoints and their overrides; uses the database, so call it off the event loop."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from inference.errors import UnknownModel
from inference.models.readable_rows import readable_rows
from models_registry.adapter_names import full_name, split_name
from models_registry.aliases import alias_adapter_key, alias_checkpoint_id
from models_registry.detection.inspection import Inspection
from models_registry.models import Adapter, Checkpoint, CheckpointOverride

if TYPE_CHECKING:
    from django.db.models import QuerySet


def checkpoint_get_by_name(name: str) -> Checkpoint:
    """Return the checkpoint that is served under ``name`` (its own, or an alias), inspection included.

    Raises:
        UnknownModel: No checkpoint has this name, or its row is damaged.
    """
    # PostgreSQL raises an error for NUL in place of finding no row.
    rows = [] if "\0" in name else readable_rows(Checkpoint.objects.filter(served_model_name=name), 1)
    if not rows:
        key = alias_checkpoint_id(name)
        rows = [] if key is None else readable_rows(Checkpoint.objects.filter(pk=key), 1)
    if not rows:
        raise UnknownModel(
            f"The model {name[:120]!r} does not exist; GET /v1/models lists the models that do.", param="model"
        )
    return rows[0]


def checkpoint_get(checkpoint_id: uuid.UUID | str) -> Checkpoint:
    """Return the checkpoint with this id, inspection included.

    Raises:
        UnknownModel: No checkpoint has this id, the id is not a UUID, or the row is damaged.
    """
    try:
        key = checkpoint_id if isinstance(checkpoint_id, uuid.UUID) else uuid.UUID(checkpoint_id)
    except ValueError:
        key = None
    rows = [] if key is None else readable_rows(Checkpoint.objects.filter(pk=key), 1)
    if not rows:
        raise UnknownModel(f"There is no checkpoint with the id {str(checkpoint_id)[:60]!r}.", param="checkpoint")
    return rows[0]


def adapter_key(name: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    """Return checkpoint and adapter of an alias, or of ``BASE:NAME``, BASE being a checkpoint or an alias.

    Returns:
        None: There is no such adapter.

    Raises:
        UnknownModel: The alias means an adapter that was removed.
    """
    found = alias_adapter_key(name)
    parts = None if "\0" in name else split_name(name)
    if found is not None or parts is None:
        return found
    base = Checkpoint.objects.filter(served_model_name=parts[0]).values_list("pk", flat=True).first()
    base = base or alias_checkpoint_id(parts[0])
    key = Adapter.objects.filter(base_id=base, name=parts[1]).values_list("pk", flat=True).first()
    return None if base is None or key is None else (base, key)


def adapter_name(adapter_id: uuid.UUID) -> str:
    """Return an adapter's name by its base's own.

    Raises:
        UnknownModel: It was removed.
    """
    rows = Adapter.objects.filter(pk=adapter_id).values_list("base__served_model_name", "name")
    found = rows.first()
    if found is None:
        raise UnknownModel("The adapter was removed; GET /v1/models lists the models that are there.", param="model")
    return full_name(*found)


def checkpoint_version(checkpoint_id: uuid.UUID) -> str:
    """Return what changes with each change of a checkpoint, without a read of its large columns.

    Raises:
        UnknownModel: No checkpoint has this id.
    """
    found = Checkpoint.objects.filter(pk=checkpoint_id).values_list("updated_at", flat=True).first()
    if found is None:
        raise UnknownModel(f"There is no checkpoint with the id {checkpoint_id}.", param="checkpoint")
    return found.isoformat()


def checkpoint_list() -> QuerySet[Checkpoint]:
    """Return all checkpoints by name, **without** the large columns (``inspection``, ``file_stamps``).

    Each access to a deferred column costs a query per row. Rows are read with ``readable_rows``.
    """
    return Checkpoint.objects.defer("inspection", "file_stamps")


def checkpoint_inspection(checkpoint: Checkpoint) -> Inspection:
    """Return the stored inspection as a value with ``.spec``, ``.tokenizer``, ``.facts`` and ``.tensors``."""
    return Inspection.from_dict(checkpoint.inspection)


def override_history(checkpoint: Checkpoint) -> QuerySet[CheckpointOverride]:
    """Return all overrides of this checkpoint, newest first, cleared ones included."""
    return checkpoint.overrides.select_related("author")


def overrides_in_force(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return fact to value, for the overrides that are not cleared; a checkpoint is given by its path."""
    rows = checkpoint.overrides.filter(cleared_at__isnull=True).values_list("fact", "value", "source__path")
    return {fact: value if path is None else path for fact, value, path in rows}
