"""Creations: what is refused at once, and the template with a system prompt."""

from __future__ import annotations

import hashlib
import io
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest

from inference.errors import BlazrError, CheckpointError, PermissionRefused
from inference.values.principal import LOCAL, principal_set
from models_registry import creations, storage
from models_registry.creations import Creation, creation_begin, creation_finish, with_system
from models_registry.detection.child import inspect_in_child
from models_registry.models import Checkpoint, Upload
from models_registry.received_blobs import blob_receive
from models_registry.services import checkpoint_register
from models_registry.sweep import storage_sweep

DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({}, "either files"),
        ({"name": "a b", "files": {"a": DIGEST}}, "name"),
        ({"files": {"a": DIGEST}, "template": "{{ if .System }}"}, "one of Go"),
        ({"files": {"a": DIGEST}, "quantize": "q5_1"}, "known are q8_0"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_read(values, match):
    with pytest.raises(BlazrError, match=match):
        Creation(**{"name": "new", **values})


@pytest.mark.parametrize("system", ["Be brief.", '"q" \\ {{ x }} {% y %}\n\tü 🙂 \\u0041', "it's"])
def test_a_system_prompt_goes_before_conversations_without_one(system):
    template = jinja2.Environment().from_string(
        with_system("{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}", system)
    )
    user = {"role": "user", "content": "Hi"}
    assert template.render(messages=[user]) == f"[system|{system}][user|Hi]"
    for role in ("system", "developer"):
        own = {"role": role, "content": "own"}
        assert template.render(messages=[own, user]) == f"[{role}|own][user|Hi]"


def test_without_a_system_prompt_the_template_stays():
    assert with_system("{{ x }}", "") == "{{ x }}"


@pytest.mark.django_db
def test_a_key_for_some_models_makes_no_others(hybrid: Path, storage_dirs: Path):
    source = checkpoint_register(path=hybrid, served_model_name="source")

    def begin(name: str):
        principal_set(replace(LOCAL, models=frozenset({"mine"})))
        return creation_begin(Creation(name=name, source=source))

    assert copy_context().run(begin, "mine") is None
    with pytest.raises(PermissionRefused, match="'child'; it is for mine"):
        copy_context().run(begin, "child")


@pytest.mark.django_db
def test_a_sweep_in_the_middle_leaves_the_files(hybrid: Path, storage_dirs: Path, monkeypatch):
    source = checkpoint_register(path=hybrid, served_model_name="source")

    def inspect(path, overrides=None):
        storage_sweep()
        return inspect_in_child(path, overrides)

    monkeypatch.setattr(creations, "inspect_in_child", inspect)
    creation = Creation(name="child", source=source)
    row = creation_finish(creation, creation_begin(creation))
    storage_sweep()
    assert row.served_model_name == "child"
    assert all((Path(row.directory) / stamp["name"]).is_file() for stamp in row.file_stamps)
    assert not Upload.objects.exists() and not list(storage.uploads_dir().iterdir())


@pytest.mark.django_db
def test_a_model_that_can_not_be_made_of_another_leaves_nothing(hybrid: Path, storage_dirs: Path):
    source = checkpoint_register(path=hybrid, served_model_name="source")
    (hybrid / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        creation_finish(Creation(name="child", source=source), None)
    assert Checkpoint.objects.count() == 1 and not Upload.objects.exists()
    assert not list(storage.uploads_dir().iterdir()) and not list(storage.checkpoints_dir().iterdir())


@pytest.mark.django_db
def test_files_that_are_here_need_no_more_of_the_disk(hybrid: Path, storage_dirs: Path, monkeypatch):
    files = {}
    for file in hybrid.iterdir():
        files[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        blob_receive(files[file.name], io.BytesIO(file.read_bytes()), file.stat().st_size)
    monkeypatch.setattr(storage, "free_bytes", lambda: 0)
    creation = Creation(name="made", files=files)
    assert creation_finish(creation, creation_begin(creation)).served_model_name == "made"
