"""Register LoRA adapters of checkpoints by path, list and remove them.

An adapter's files are inspected in a child process before anything is stored; they stay where they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from django.db import IntegrityError, transaction

from inference.errors import Conflict, InvalidRequest, NotFound
from inference.host.disk import path_exists
from inference.models.readable_rows import readable_rows
from models_registry import live
from models_registry.adapter_names import MAX_ADAPTER_CHARS, check_adapter_name, full_name
from models_registry.aliases import check_adapter_not_current
from models_registry.checkpoint_jobs import check_available
from models_registry.detection.child import inspect_adapter_in_child
from models_registry.detection.xlora_files import adapter_directories
from models_registry.models import Adapter, Checkpoint, ModelAlias
from models_registry.names import suggest_name
from models_registry.runs.allowed import check_allowed
from models_registry.selectors import checkpoint_inspection

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser

MAX_PATH_CHARS = 4096


def adapter_register(
    *, checkpoint: Checkpoint, path: str | Path, name: str | None = None, owner: AbstractBaseUser | None = None
) -> Adapter:
    """Inspect an adapter's files against its base, and store the result.

    Args:
        path: PEFT's directory or its safetensors file, in a directory that the server's settings name.
        name: None: the last component of the path.

    Raises:
        InvalidRequest: The name isn't legal, or the path can't be one.
        PermissionRefused: The settings don't name a directory with this path.
        Conflict: The name is taken, or the base's files can't be served.
        CheckpointError: The files are broken or don't fit the base; nothing is stored.
    """
    check_available(checkpoint)
    place = checked_place(path)
    if name is None:
        name = suggest_name(str(path)).replace(":", "-")[:MAX_ADAPTER_CHARS]
    check_adapter_name(name)
    _check_free(checkpoint, name)
    found = inspect_adapter_in_child(place, checkpoint_inspection(checkpoint))
    try:
        with transaction.atomic():
            return Adapter.objects.create(
                base=checkpoint,
                name=name,
                path=str(place),
                digest=found.digest,
                kind=Adapter.Kind.XLORA if found.is_xlora else Adapter.Kind.LORA,
                rank=found.rank,
                targets=list(found.targets),
                num_values=found.num_values,
                size_bytes=found.size_bytes,
                owner_id=getattr(owner, "pk", None),
            )
    except IntegrityError:
        _check_free(checkpoint, name)
        raise Conflict(f"{checkpoint.served_model_name} was deleted meanwhile.", param="checkpoint") from None


def adapter_list(checkpoint: Checkpoint) -> list[Adapter]:
    """Return a checkpoint's adapters by name."""
    return readable_rows(Adapter.objects.filter(base=checkpoint).select_related("base", "owner").defer(*_LARGE))


def adapters_available() -> list[Adapter]:
    """Return the adapters that can be served, of all bases that can."""
    rows = Adapter.objects.filter(state=Adapter.State.AVAILABLE, base__state=Checkpoint.State.AVAILABLE)
    return readable_rows(rows.select_related("base").defer(*_LARGE).order_by("base__served_model_name", "name"))


def adapter_get(*, checkpoint: Checkpoint, adapter_id: uuid.UUID) -> Adapter:
    """Return one adapter of a checkpoint.

    Raises:
        NotFound: It has none with this id.
    """
    row = Adapter.objects.filter(base=checkpoint, pk=adapter_id).first()
    if row is None:
        raise NotFound(f"{checkpoint.served_model_name} has no adapter with the id {adapter_id}.", param="adapter")
    return row


def adapter_remove(*, checkpoint: Checkpoint, adapter_id: uuid.UUID) -> None:
    """Take an adapter out of the registry and, once that is stored, away from the workers.

    Its files stay, and running requests go on.

    Raises:
        NotFound: The checkpoint has none with this id.
        Conflict: An alias means it.
    """
    row = adapter_get(checkpoint=checkpoint, adapter_id=adapter_id)
    check_adapter_not_current(row)
    row.delete()
    transaction.on_commit(lambda: live.forget_adapter(str(adapter_id)), robust=True)


def aliases_by_adapter(checkpoint: Checkpoint) -> dict[uuid.UUID, list[str]]:
    """Return the names of the aliases that mean adapters of a checkpoint, by adapter."""
    found: dict[uuid.UUID, list[str]] = {}
    rows = ModelAlias.objects.filter(current__adapter__base=checkpoint).order_by("name")
    for name, key in rows.values_list("name", "current__adapter"):
        found.setdefault(key, []).append(name)
    return found


def adapter_states_refresh() -> int:
    """Record which adapters' files are missing or exist again; returns the number of changed rows."""
    changed = 0
    for key, path, before in Adapter.objects.values_list("pk", "path", "state"):
        state = Adapter.State.AVAILABLE if path_exists(Path(path)) else Adapter.State.MISSING
        if state != before:
            changed += Adapter.objects.filter(pk=key, state=before).update(state=state)
    return changed


_LARGE = ("base__inspection", "base__file_stamps")


def checked_place(path: str | Path) -> Path:
    """Return the absolute path of an adapter's files.

    Raises:
        InvalidRequest: It can't be a path, or can't be read.
        PermissionRefused: The settings don't name a directory with this path.
    """
    if not str(path) or "\0" in str(path) or len(str(path)) > MAX_PATH_CHARS:
        raise InvalidRequest("path is no path of a directory or file.", param="path")
    try:
        place = Path(path).expanduser().absolute()
        directory = place if place.is_dir() else place.parent
        for found in (place, directory, *_links(directory)):
            check_allowed(found, param="path")
    except (OSError, RuntimeError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"path {str(path)[:300]!r} can't be read: {reason}.", param="path") from None
    return place


def _links(directory: Path) -> Iterator[Path]:
    """The links to files in the directories that an inspection reads: an adapter's own, and those of an X-LoRA's."""
    for place in (directory, *adapter_directories(directory)) if directory.is_dir() else ():
        yield from (entry for entry in place.iterdir() if entry.is_symlink() and not entry.is_dir())


def _check_free(checkpoint: Checkpoint, name: str) -> None:
    full = full_name(checkpoint.served_model_name, name)
    is_model = Checkpoint.objects.filter(served_model_name=full).exists()
    if is_model or ModelAlias.objects.filter(name=full).exists():
        raise Conflict(f"{full!r} is the name of a checkpoint or an alias; give another name.", param="name")
    if Adapter.objects.filter(base=checkpoint, name=name).exists():
        raise Conflict(
            f"{checkpoint.served_model_name} has an adapter {name!r}; remove it first, or give another name.",
            param="name",
        )
