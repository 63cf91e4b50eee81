"""Shapes of the registry's API: what comes in is bounded, what goes out is documented."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.utils import timezone

from inference.values.states import ModelState
from models_registry import live, services
from models_registry.api import serializers as shapes
from models_registry.models import Upload, UploadFile
from models_registry.upload_rules import CHUNK_BYTES, MAX_FILES

FILE = {"name": "model.safetensors", "size_bytes": 5}


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "x" * 10_000},
        {"size_bytes": -1},
        {"size_bytes": 1 << 63},
        {"size_bytes": "many"},
        {"size_bytes": None},
        {"sha256": "0" * 65},
    ],
)
def test_declared_files_are_bounded(change):
    assert shapes.DeclaredFileSerializer(data=FILE).is_valid()
    assert not shapes.DeclaredFileSerializer(data=FILE | change).is_valid()


def test_a_declaration_needs_files_only_and_not_too_many():
    declaration = shapes.UploadCreateSerializer(data={"files": [FILE]})
    assert declaration.is_valid(), declaration.errors
    assert declaration.validated_data["files"] == [{**FILE, "sha256": ""}]
    assert (declaration.validated_data["served_model_name"], declaration.validated_data["label"]) == ("", "")
    assert not shapes.UploadCreateSerializer(data={}).is_valid()
    assert not shapes.UploadCreateSerializer(data={"files": [FILE] * (MAX_FILES + 1)}).is_valid()


def test_names_of_files_keep_their_spaces():
    """The rules refuse them by name; a trimmed one would be another file."""
    declared = shapes.DeclaredFileSerializer(data=FILE | {"name": " config.json "})
    assert declared.is_valid()
    assert declared.validated_data["name"] == " config.json "


def test_an_upload_says_where_each_file_goes_on(db):
    upload = Upload.objects.create(served_model_name="tiny", size_bytes=5, active_at=timezone.now())
    UploadFile.objects.create(upload=upload, number=0, received_bytes=3, **FILE)
    found = shapes.UploadSerializer(upload).data
    assert (found["state"], found["chunk_bytes"], found["checkpoint"]) == ("receiving", CHUNK_BYTES, None)
    assert found["files"] == [{"number": 0, **FILE, "received_bytes": 3, "sha256": ""}]


def test_a_checkpoints_live_state_has_what_is_documented(db, hybrid: Path):
    row = services.checkpoint_register(path=hybrid)
    seen = live.Live({str(row.pk): ModelState(str(row.pk), "ready", workers=("w1",), num_running=2)}, ())
    found = shapes.CheckpointSerializer(live.with_live([row], seen), many=True).data
    assert set(found[0]["live"]) == set(shapes.LiveStateSerializer().fields)
    assert (found[0]["live"]["status"], found[0]["live"]["num_running"]) == ("ready", 2)
    assert "inspection" not in found[0]
    assert "file_stamps" not in found[0]


@pytest.mark.parametrize(
    ("serializer", "data", "is_valid"),
    [
        (shapes.OverrideSetSerializer, {"fact": "top_k", "value": None}, True),
        (shapes.OverrideSetSerializer, {"fact": "top_k"}, False),
        (shapes.OverrideSetSerializer, {"fact": "x" * 65, "value": 1}, False),
        (shapes.SettingsSerializer, {"settings": {"dtype": None, "max_num_seqs": 3}}, True),
        (shapes.SettingsSerializer, {"settings": ["dtype"]}, False),
        (shapes.CheckpointRenameSerializer, {"served_model_name": "x" * 97}, False),
    ],
)
def test_changes_are_checked_for_their_types(serializer, data, is_valid):
    assert serializer(data=data).is_valid() is is_valid
