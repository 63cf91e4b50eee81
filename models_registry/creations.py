"""Make a model of received blobs, or of another model's files, with a template, a system prompt and parameters."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.utils import timezone

from inference.errors import CheckpointError, Conflict, InvalidRequest, UnsupportedFeature
from inference.values.principal import principal_current
from models_registry import storage
from models_registry.chat_templates import check_before_inspection
from models_registry.detection.child import inspect_in_child
from models_registry.detection.facts import CHAT_TEMPLATE
from models_registry.models import Checkpoint, Upload, UploadFile
from models_registry.names import check_name
from models_registry.received_blobs import blob_hold
from models_registry.selectors import overrides_in_force
from models_registry.services import (
    checkpoint_delete,
    checkpoint_override_set,
    checkpoint_register,
    checkpoint_settings_update,
    name_taken,
    own_stamps,
)
from models_registry.settings_schema import PARAMETERS
from models_registry.upload_rules import DeclaredFile
from models_registry.uploads import upload_cancel, upload_create, upload_finish

QUANTS = {
    "q8_0": "int8", "int8": "int8", "q4_0": "int4", "q4_k_m": "int4", "q4_k_s": "int4", "int4": "int4",
}  # fmt: skip
"""Ollama's names of quantisations, and the nearest form that weights are loaded in."""
_GO_TEMPLATE_MARKS = ("{{ .", "{{.", "{{- .", "{{ if .", "{{- if .", "{{if .", "{{ range", "{{- range")


@dataclass(frozen=True, slots=True)
class Creation:
    """A model to make.

    Attributes:
        files: Names of the model's files with their digests; empty: those of ``source``.
        source: A model of the registry.
        template: Chat template in Jinja; empty: the files' own.
        system: System prompt of conversations without one.
        parameters: Options of Ollama's requests that don't give them.
        quantize: One of ``QUANTS``; empty: as stored.
    """

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    source: Checkpoint | None = None
    template: str = ""
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    quantize: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        if bool(self.files) == (self.source is not None):
            raise InvalidRequest("either files (names to digests) or from (a model) is required.", param="files")
        if self.template and any(mark in self.template for mark in _GO_TEMPLATE_MARKS):
            raise UnsupportedFeature(
                "template is one of Go's, as Ollama has them; send it in Jinja, or leave it out: the files' own "
                "template is used.",
                param="template",
            )
        if self.quantize and self.quantize.lower() not in QUANTS:
            raise UnsupportedFeature(
                f"quantize is {self.quantize[:40]!r}; known are {', '.join(QUANTS)}, which quantise the weights as "
                "they are loaded.",
                param="quantize",
            )


def creation_begin(creation: Creation) -> uuid.UUID | None:
    """Check a creation as far as no file has to be read; returns its upload, if it is made of blobs.

    Raises:
        BlazrError: It can't be made, or the caller's key is for other models; nothing is left.
    """
    principal_current().check_model(creation.name)
    if creation.source is not None:
        if Checkpoint.objects.filter(served_model_name=creation.name).exists():
            raise InvalidRequest(f"the name {creation.name!r} is taken; delete that model first.", param="model")
        check_before_inspection({CHAT_TEMPLATE: creation.template} if creation.template else {})
        return None
    blobs = {name: blob_hold(digest) for name, digest in creation.files.items()}
    declared = [DeclaredFile(name, blob.stat().st_size, creation.files[name]) for name, blob in blobs.items()]
    overrides = {CHAT_TEMPLATE: creation.template} if creation.template else {}
    upload = upload_create(
        owner=None, served_model_name=creation.name, files=declared, overrides=overrides, are_stored=True
    )
    try:
        for file in upload.files.all():
            part = storage.part_path(upload.pk, file.number)
            part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _link(blobs[file.name], part)
            UploadFile.objects.filter(pk=file.pk).update(received_bytes=file.size_bytes)
        Upload.objects.filter(pk=upload.pk).update(active_at=timezone.now())
    except BaseException:
        upload_cancel(upload_id=upload.pk)
        raise
    return upload.pk


def creation_finish(creation: Creation, upload_id: uuid.UUID | None) -> Checkpoint:
    """Inspect and register the model; takes as long as reading its files.

    Raises:
        BlazrError: The files are refused; nothing is left.
    """
    row = _of_model(creation) if upload_id is None else _of_upload(upload_id)
    try:
        if creation.system or (creation.template and upload_id is None):
            template = creation.template or row.inspection["tokenizer"].get("chat_template")
            if not template:
                raise UnsupportedFeature(
                    "system needs a chat template, which these files don't have; send one as template.", param="system"
                )
            value = with_system(template, creation.system)
            checkpoint_override_set(checkpoint=row, fact=CHAT_TEMPLATE, value=value)
        values: dict[str, Any] = {}
        if creation.parameters:
            values[PARAMETERS] = dict(creation.parameters)
        if creation.quantize:
            values["quant"] = QUANTS[creation.quantize.lower()]
        if values:
            checkpoint_settings_update(checkpoint=row, values=values)
    except BaseException:
        checkpoint_delete(checkpoint=row)
        raise
    return row


def with_system(template: str, system: str) -> str:
    """Return a Jinja template that puts a system prompt before conversations that have none of their own."""
    if not system:
        return template
    message = json.dumps({"role": "system", "content": system}, ensure_ascii=False)
    return (
        "{%- if messages and messages[0]['role'] not in ['system', 'developer'] -%}"
        f"{{%- set messages = [{message}] + messages -%}}"
        "{%- endif -%}" + template
    )


def _of_upload(upload_id: uuid.UUID) -> Checkpoint:
    try:
        upload = upload_finish(upload_id=upload_id, wait=True)
        if upload.state == Upload.State.RECEIVING:
            raise name_taken(upload.served_model_name)
    except Conflict:
        upload_cancel(upload_id=upload_id)  # its files are blobs, which stay for another name
        raise
    if upload.state != Upload.State.DONE or upload.checkpoint is None:
        raise CheckpointError(upload.reason or f"the files were not taken ({upload.state}).")
    return upload.checkpoint


def _of_model(creation: Creation) -> Checkpoint:
    """Register the files of another model once more, by links, under an id of its own.

    An upload's row and lock keep the sweep away from the links until the checkpoint's row is there.
    """
    source = creation.source
    assert source is not None
    upload = Upload.objects.create(
        served_model_name=creation.name, size_bytes=source.size_bytes, active_at=timezone.now()
    )
    try:
        with storage.upload_lock(upload.pk):
            Upload.objects.filter(pk=upload.pk).update(state=Upload.State.CHECKING, stage="inspecting")
            return _register_links(source, creation.name, upload.pk)
    finally:
        Upload.objects.filter(pk=upload.pk).delete()
        storage.remove_upload_files(upload.pk)


def _register_links(source: Checkpoint, name: str, key: uuid.UUID) -> Checkpoint:
    directory = storage.checkpoint_path(key)
    try:
        directory.mkdir(parents=True, mode=0o700)
        stamps = own_stamps(source)
        for stamp in stamps:
            target = directory / Path(stamp["name"]).name
            origin = (Path(source.directory) / stamp["name"]).resolve()
            if source.owns_files:
                _link(origin, target)  # so that they stay when the other model is deleted
            else:
                target.symlink_to(origin)
        place = directory / Path(stamps[0]["name"]).name if len(stamps) == 1 else directory
        return checkpoint_register(
            path=place,
            served_model_name=name,
            source=Checkpoint.Source.UPLOAD,
            overrides=overrides_in_force(source),
            origin=source.served_model_name,
            checkpoint_id=key,
            sha256={stamp["name"]: stamp["sha256"] for stamp in stamps if stamp["sha256"]},
            inspect=inspect_in_child,
        )
    except BaseException as error:
        storage.remove_checkpoint_files(key)
        if isinstance(error, OSError):
            raise CheckpointError(f"the files of {source.served_model_name} can't be used: {error.strerror}.") from None
        raise


def _link(blob: Path, target: Path) -> None:
    try:
        os.link(blob, target)
    except OSError:
        with storage.full_disk_as_error():
            shutil.copyfile(blob, target)
