"""Write to the registry: register, refresh, override, set, rename and delete checkpoints.

Each function leaves either the old rows or complete new ones. Inspection runs before the transaction, because it reads
files. No function loads a model or calls a worker.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, IntegrityError, transaction
from django.utils import timezone

from inference.errors import BlazrError, ChecksumMismatch, Conflict, CorruptCheckpoint, NotFound
from inference.host.disk import path_exists
from models_registry import storage
from models_registry.adapter_names import full_name, names_adapter
from models_registry.aliases import check_not_current
from models_registry.chat_templates import check_after_inspection
from models_registry.detection.child import inspect_in_child
from models_registry.detection.facts import CHAT_TEMPLATE, TOKENIZER_FROM, check_overrides
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from models_registry.models import Adapter, Checkpoint, CheckpointOverride, ModelAlias, TrainingRun
from models_registry.names import check_name, make_unique, suggest_name
from models_registry.selectors import overrides_in_force
from models_registry.settings_schema import validate_settings
from models_registry.tokenizer_sources import (
    check_not_borrowed,
    source_digests,
    source_find,
    with_source_name,
    with_source_path,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import AbstractBaseUser
    from django.db.models import QuerySet

Inspector = Callable[..., Inspection]
"""``inspect_checkpoint`` or, for files that aren't trusted, ``inspect_in_child``."""

_NAME_ATTEMPTS = 5


def checkpoint_register(
    *,
    path: str | Path,
    served_model_name: str | None = None,
    source: str = Checkpoint.Source.PATH,
    overrides: Mapping[str, Any] | None = None,
    origin: str = "",
    author: AbstractBaseUser | None = None,
    checkpoint_id: uuid.UUID | None = None,
    sha256: Mapping[str, str] | None = None,
    inspect: Inspector | None = None,
    confirm: Callable[[Checkpoint], None] | None = None,
) -> Checkpoint:
    """Inspect the files at ``path`` and store the result; a known path is inspected again.

    Args:
        path: Directory or weight file. Links are kept, because hub caches consist of links.
        served_model_name: None: the last component of the path, numbered if that is taken. A given name must be
            free; for a known path it renames.
        overrides: Facts set by a person, added to those in force.
        origin: Where the files came from, for people (hub id, folder name).
        author: Who set ``overrides``.
        checkpoint_id: Primary key of a new row.
        sha256: Digests by file name, where they have been measured.
        inspect: Default: in this process.
        confirm: Called with the row in the transaction that stores it; what it raises undoes that.

    Raises:
        CheckpointError: The files aren't a checkpoint that can be served; nothing is stored.
        Conflict, InvalidRequest: The name is taken by another checkpoint, or not legal, or an override is unknown.
    """
    place = Path(path).expanduser().absolute()
    if served_model_name is not None:
        check_name(served_model_name)
    overrides = with_source_path(check_overrides(overrides or {}))
    known = Checkpoint.objects.filter(path=str(place)).first()
    in_force = {**(overrides_in_force(known) if known else {}), **overrides}
    inspection = (inspect or inspect_checkpoint)(place, overrides=in_force)
    inspection = _complete(inspection, in_force, is_new=CHAT_TEMPLATE in overrides)
    columns = _columns(inspection, {**source_digests(in_force), **(sha256 or {})})
    with transaction.atomic():
        if known is None:
            name = served_model_name or suggest_name(origin or place.name)
            row = _create_named(
                name,
                exact=served_model_name is not None,
                values={"id": checkpoint_id or uuid.uuid4(), "path": str(place), "source": source, "origin": origin}
                | columns,
            )
        else:
            row, given = known, {"origin": origin or None, "served_model_name": served_model_name}
            _save_named(row, columns | {name: value for name, value in given.items() if value is not None})
        for fact, value in overrides.items():
            _record_override(row, fact, value, author)
        if confirm is not None:
            confirm(row)
    return row


def checkpoint_refresh(*, checkpoint: Checkpoint) -> Checkpoint:
    """Inspect the files again, with the overrides in force.

    Raises:
        CheckpointError: The files can't be served any more. The row keeps its last inspection, with the state
            ``missing`` or ``refused`` and the reason.
        NotFound, Conflict: It was deleted meanwhile, or a fact was set.
    """
    overrides = overrides_in_force(checkpoint)
    try:
        inspection = inspect_in_child(Path(checkpoint.path), overrides=overrides)
    except BlazrError as error:
        state = Checkpoint.State.REFUSED if path_exists(Path(checkpoint.path)) else Checkpoint.State.MISSING
        _save(checkpoint, {"state": state, "state_reason": error.message})
        raise
    inspection = _complete(inspection, overrides, is_new=False)
    with transaction.atomic():
        _store_again(checkpoint, inspection, overrides)
    return checkpoint


def checkpoint_files_verify(checkpoint: Checkpoint) -> None:
    """Check that the files are the inspected ones; called before and after a load.

    Size, times and inode are compared. A program can set the time of the last write, but not that of the last change
    of the inode. The latter changes with mode, owner and links, too: then the digest decides, if there is one. Uploads
    have digests, and share their files by links. After a digest has matched, the new time is stored, in the row and in
    ``checkpoint``: the next check needs no digest.

    Raises:
        ChecksumMismatch: A file is missing, or was replaced or edited.
    """
    stamps = []
    for stamp in checkpoint.file_stamps:
        file = Path(checkpoint.directory) / stamp["name"]
        try:
            status = file.stat()
        except OSError:
            raise ChecksumMismatch(
                f"{stamp['name']} of {checkpoint.served_model_name} is gone; restore it or register the model again.",
                param=stamp["name"],
            ) from None
        if not _is_unchanged(file, status, stamp):
            if not stamp["sha256"] and _is_same_file(status, stamp):
                raise ChecksumMismatch(
                    f"The metadata of {stamp['name']} of {checkpoint.served_model_name} (permissions, owner or links) "
                    'has changed since it was inspected; press "Inspect again" on the model\'s page.',
                    param=stamp["name"],
                )
            raise ChecksumMismatch(
                f"{stamp['name']} of {checkpoint.served_model_name} has changed since it was inspected "
                f"({stamp['size_bytes']} bytes then, {status.st_size} now); inspect the model again.",
                param=stamp["name"],
            )
        # The status is from before the digest: an edit since then is noticed by the next check.
        stamps.append({**stamp, "ctime_ns": status.st_ctime_ns} if "ctime_ns" in stamp else stamp)
    if stamps != checkpoint.file_stamps:
        before, checkpoint.file_stamps = checkpoint.file_stamps, stamps
        # A row that was inspected again in the meantime keeps its stamps.
        # Without a database the check still holds; a later load stores the stamps.
        with suppress(DatabaseError), transaction.atomic():
            Checkpoint.objects.filter(pk=checkpoint.pk, file_stamps=before).update(file_stamps=stamps)


def checkpoint_states_refresh() -> int:
    """Record which checkpoints' files are missing or exist again; returns the number of changed rows."""
    changed = 0
    for row in Checkpoint.objects.defer("inspection", "file_stamps", "settings"):
        gone = not path_exists(Path(row.path))
        if gone and row.state == Checkpoint.State.AVAILABLE:
            state, reason = Checkpoint.State.MISSING, f"{row.path} does not exist any more, or can't be looked at."
        elif not gone and row.state == Checkpoint.State.MISSING:
            state, reason = Checkpoint.State.AVAILABLE, ""
        else:
            continue
        changed += Checkpoint.objects.filter(pk=row.pk, state=row.state).update(
            state=state, state_reason=reason, updated_at=timezone.now()
        )
    return changed


def checkpoint_override_set(
    *,
    checkpoint: Checkpoint,
    fact: str,
    value: Any,
    author: AbstractBaseUser | None = None,
) -> Checkpoint:
    """Set a fact by hand and inspect again with it; the earlier value stays in the history.

    A loaded model keeps its facts until the next load.

    Raises:
        InvalidRequest, CheckpointError: The fact is unknown, or the checkpoint contradicts the value; nothing
            changes.
        NotFound, Conflict: The checkpoint was deleted meanwhile, or another fact was set.
    """
    ((fact, value),) = with_source_path(check_overrides({fact: value})).items()
    overrides = overrides_in_force(checkpoint) | {fact: value}
    inspection = inspect_in_child(Path(checkpoint.path), overrides=overrides)
    inspection = _complete(inspection, overrides, is_new=fact == CHAT_TEMPLATE)
    with transaction.atomic():
        _lock(checkpoint)
        _record_override(checkpoint, fact, value, author)
        _store_again(checkpoint, inspection, overrides)
    return checkpoint


def checkpoint_override_clear(*, checkpoint: Checkpoint, fact: str) -> Checkpoint:
    """Clear the override of ``fact``, which restores the detected value.

    Raises:
        NotFound: The fact isn't overridden, or the checkpoint was deleted meanwhile.
        Conflict: Another fact was set meanwhile.
        CheckpointError: Without the override the checkpoint can't be read; nothing changes.
    """
    overrides = overrides_in_force(checkpoint)
    if fact not in overrides:
        raise NotFound(f"{fact[:60]!r} is not overridden on {checkpoint.served_model_name}.", param="fact")
    del overrides[fact]
    inspection = inspect_in_child(Path(checkpoint.path), overrides=overrides)
    inspection = _complete(inspection, overrides, is_new=False)
    with transaction.atomic():
        _end(_in_force(checkpoint, fact))
        _store_again(checkpoint, inspection, overrides)
    return checkpoint


def checkpoint_settings_update(*, checkpoint: Checkpoint, values: Mapping[str, Any]) -> Checkpoint:
    """Change some of the model's settings, from the next load on; null restores the default.

    Raises:
        InvalidRequest: A setting is unknown, of the wrong type or out of range.
    """
    with transaction.atomic():
        row = Checkpoint.objects.select_for_update().defer("inspection").get(pk=checkpoint.pk)
        merged = {**row.settings, **values}
        row.settings = validate_settings(merged, max_position_embeddings=row.max_position_embeddings)
        row.save(update_fields=["settings", "updated_at"])
    checkpoint.settings, checkpoint.updated_at = row.settings, row.updated_at
    return checkpoint


def checkpoint_rename(*, checkpoint: Checkpoint, served_model_name: str) -> Checkpoint:
    """Serve the checkpoint under another name.

    Raises:
        InvalidRequest, Conflict: The name isn't legal, or is taken.
    """
    with transaction.atomic():
        _save_named(checkpoint, {"served_model_name": check_name(served_model_name)})
    return checkpoint


def checkpoint_delete(*, checkpoint: Checkpoint) -> None:
    """Delete a checkpoint and the files that are its own: uploads and copies. Files registered by path are kept.

    The caller unloads the model from the workers first, after ``checkpoint_check_unused``.

    Raises:
        Conflict: As ``checkpoint_check_unused``.
    """
    checkpoint_check_unused(checkpoint)
    key, owns_files = checkpoint.pk, checkpoint.owns_files
    checkpoint.delete()
    if owns_files:
        storage.remove_checkpoint_files(key)


def checkpoint_check_unused(checkpoint: Checkpoint) -> None:
    """Check that a checkpoint can be deleted.

    Raises:
        Conflict: An alias refers to the checkpoint, or another checkpoint uses its tokenizer.
    """
    check_not_current(checkpoint)
    check_not_borrowed(checkpoint)


def free_name(name: str) -> str:
    """Return ``name``, or the first of ``name-2``, ``name-3`` … that is free at this moment."""
    stem = name[:80]
    taken = Checkpoint.objects.filter(served_model_name__startswith=stem).values_list("served_model_name", flat=True)
    aliases = ModelAlias.objects.filter(name__startswith=stem).values_list("name", flat=True)
    runs = TrainingRun.objects.filter(name__startswith=stem).values_list("name", flat=True)  # aliases, sooner or later
    bases = Adapter.objects.filter(base__served_model_name__startswith=stem.partition(":")[0])
    adapters = (full_name(*parts) for parts in bases.values_list("base__served_model_name", "name"))
    return make_unique(name, {*taken, *aliases, *runs, *adapters})


def architecture_summary(kinds: list[str]) -> str:
    """Summarise the layers' kinds as ``12 × mamba2, 4 × mla+moe``, in order of first occurrence."""
    summary = ", ".join(f"{count} × {kind}" for kind, count in Counter(kinds).items())
    return summary if len(summary) <= 300 else summary[:299] + "…"


# --- rows --------------------------------------------------------------------------------------


def _columns(inspection: Inspection, sha256: Mapping[str, str]) -> dict[str, Any]:
    spec, stored = inspection.spec, inspection.to_dict()
    if not _is_storable([stored["tokenizer"], stored["facts"], stored["warnings"]]):
        raise CorruptCheckpoint(
            "a text of the tokenizer files or config.json holds U+0000 or half a surrogate pair; remove it."
        )
    return {
        "directory": str(inspection.directory),
        "format": spec.format,
        "model_type": spec.model_type,
        "architecture": architecture_summary([layer.kind for layer in spec.layers]),
        "dtype": spec.dtype,
        "num_layers": len(spec.layers),
        "num_parameters": inspection.num_parameters,
        "size_bytes": inspection.size_bytes,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "inspection": stored,
        "file_stamps": _stamps(inspection, sha256),
        "state": Checkpoint.State.AVAILABLE,
        "state_reason": "",
    }


def _is_storable(value: Any) -> bool:
    """Whether PostgreSQL's jsonb accepts all strings in ``value``; tensor and file names are always safe."""
    if isinstance(value, str):
        return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Mapping):
        return all(_is_storable(item) for pair in value.items() for item in pair)
    return not isinstance(value, list | tuple) or all(map(_is_storable, value))


def _stamps(inspection: Inspection, sha256: Mapping[str, str]) -> list[dict[str, Any]]:
    stamps = []
    for file in inspection.files:
        status = (Path(inspection.directory) / file.path).stat()
        if status.st_size != file.size_bytes:
            raise CorruptCheckpoint(
                f"{file.path} changed while it was inspected ({file.size_bytes} bytes, then {status.st_size}).",
                param=file.path,
            )
        stamps.append(file_stamp(file.path, status, sha256.get(file.path, "")))
    return stamps


def file_stamp(name: str, status: os.stat_result, sha256: str) -> dict[str, Any]:
    """Return what a row remembers of a file; ``sha256`` is empty if it isn't known."""
    return {
        "name": name,
        "size_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
        "sha256": sha256,
    }


def own_stamps(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the stamps of the files in a checkpoint's directory; a tokenizer may be another checkpoint's."""
    return [stamp for stamp in checkpoint.file_stamps if not Path(stamp["name"]).is_absolute()]


def _is_unchanged(file: Path, status: os.stat_result, stamp: Mapping[str, Any]) -> bool:
    """Whether a file is the one of which a stamp was made; a digest decides where only the inode has changed."""
    found = file_stamp(stamp["name"], status, stamp["sha256"])
    if found == {"ctime_ns": status.st_ctime_ns, **stamp}:  # rows of earlier versions have no ctime_ns
        return True
    return (
        _is_same_file(status, stamp)
        and bool(stamp["sha256"])
        and storage.sha256_file(file, lambda _: None) == stamp["sha256"]
    )


def _is_same_file(status: os.stat_result, stamp: Mapping[str, Any]) -> bool:
    """Whether all but the time of the last change of the inode is as in the stamp."""
    return file_stamp(stamp["name"], status, stamp["sha256"]) == {**stamp, "ctime_ns": status.st_ctime_ns}


def _store_again(checkpoint: Checkpoint, inspection: Inspection, overrides: Mapping[str, Any]) -> None:
    """Store an inspection that was made with these overrides, unless others have come into force meanwhile."""
    _lock(checkpoint)
    if overrides_in_force(checkpoint) != overrides:
        raise Conflict(
            f"A fact of {checkpoint.served_model_name} was set or cleared while its files were inspected; try again.",
            param="fact",
        )
    before = {stamp["name"]: stamp for stamp in checkpoint.file_stamps}
    columns = _columns(inspection, source_digests(overrides))
    for stamp in columns["file_stamps"]:
        # A digest is kept only if the file is unchanged since the digest was computed.
        old, file = before.get(stamp["name"]), Path(columns["directory"]) / stamp["name"]
        if old is not None and old["sha256"] and _is_unchanged(file, file.stat(), old):
            stamp["sha256"] = old["sha256"]
    _save(checkpoint, columns)


def _lock(row: Checkpoint) -> None:
    """Lock a row for the rest of the transaction.

    Raises:
        NotFound: It was deleted.
        Conflict: Its files were copied, because it was promoted.
    """
    path = Checkpoint.objects.select_for_update().filter(pk=row.pk).values_list("path", flat=True).first()
    if path is None:
        raise NotFound(f"{row.served_model_name} was deleted meanwhile.", param="checkpoint")
    if path != row.path:
        raise Conflict(f"The files of {row.served_model_name} were copied meanwhile; try again.", param="checkpoint")


def _save(row: Checkpoint, values: Mapping[str, Any]) -> None:
    """Write these columns alone, as ``_lock`` allows: what others have changed in the rest meanwhile stays."""
    for name, value in values.items():
        setattr(row, name, value)
    with transaction.atomic():
        _lock(row)
        row.save(update_fields=[*values, "updated_at"])


def _record_override(checkpoint: Checkpoint, fact: str, value: Any, author: AbstractBaseUser | None) -> None:
    source = source_find(value) if fact == TOKENIZER_FROM else None
    shown = value if source is None else source.served_model_name
    in_force = _in_force(checkpoint, fact)
    before = in_force.first()
    if before is not None and (before.value, type(before.value), before.source) == (shown, type(shown), source):
        return  # each start of blazr serve sets the facts of its file
    _end(in_force)
    CheckpointOverride.objects.create(
        checkpoint=checkpoint,
        fact=fact,
        value=shown,
        source=source,
        author_id=getattr(author, "pk", None),
        author_name="" if author is None else author.get_username(),
    )


def _in_force(checkpoint: Checkpoint, fact: str) -> QuerySet[CheckpointOverride]:
    return checkpoint.overrides.filter(fact=fact, cleared_at__isnull=True)


def _end(overrides: QuerySet[CheckpointOverride]) -> None:
    overrides.update(cleared_at=timezone.now(), source=None)


def _complete(inspection: Inspection, overrides: Mapping[str, Any], *, is_new: bool) -> Inspection:
    """Add to an inspection what the database and the sandbox of templates know; ``is_new``: as in the latter."""
    return check_after_inspection(with_source_name(inspection, overrides), overrides, is_new=is_new)


def _create_named(name: str, *, exact: bool, values: dict[str, Any]) -> Checkpoint:
    """Insert a row under ``name``, or ``name`` with the next free number; safe for concurrent calls."""
    for _ in range(_NAME_ATTEMPTS):
        free = free_name(name)
        if exact and free != name:
            raise name_taken(name)
        try:
            with transaction.atomic():
                return Checkpoint.objects.create(served_model_name=free, **values)
        except IntegrityError:
            if Checkpoint.objects.filter(path=values["path"]).exists():
                raise Conflict(f"{values['path']} is being registered by another process; try again.") from None
    raise name_taken(name)


def _save_named(row: Checkpoint, values: Mapping[str, Any]) -> None:
    """Write columns, after a check of the name that the row has or gets by them."""
    name = values.get("served_model_name", row.served_model_name)
    is_run = name != row.served_model_name and TrainingRun.objects.filter(name=name).exists()
    if is_run or ModelAlias.objects.filter(name=name).exists() or names_adapter(name):
        raise name_taken(name)
    # Its adapters are called by its name.
    own = [full_name(name, adapter) for adapter in row.adapters.values_list("name", flat=True)]
    others = Checkpoint.objects.filter(served_model_name__in=own), ModelAlias.objects.filter(name__in=own)
    if any(found.exists() for found in others):
        raise name_taken(name)
    try:
        _save(row, values)
    except IntegrityError:
        raise name_taken(name) from None


def name_taken(name: str) -> Conflict:
    """Return the error for a name that can't be given again."""
    return Conflict(
        f"The name {name!r} is taken by another checkpoint, an alias, a training run or an adapter; choose another "
        "served_model_name.",
        param="served_model_name",
    )
