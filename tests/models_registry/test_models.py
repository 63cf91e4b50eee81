"""What the rows themselves refuse, and what outlives its parents."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from models_registry.models import AliasRevision, Checkpoint, CheckpointOverride, ModelAlias, Upload, UploadFile
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def checkpoint() -> Checkpoint:
    return make_checkpoint("tiny")


def refused(make) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        make()


def test_names_and_paths_of_checkpoints_are_unique(checkpoint):
    refused(lambda: make_checkpoint("tiny", path="/elsewhere"))
    refused(lambda: make_checkpoint("other", path=checkpoint.path))
    assert str(checkpoint) == "tiny"


def test_one_override_per_fact_is_in_force(checkpoint):
    def make() -> CheckpointOverride:
        return CheckpointOverride.objects.create(checkpoint=checkpoint, fact="top_k", value=2)

    first = make()
    refused(make)
    first.cleared_at = timezone.now()
    first.save()
    assert str(make()) == "top_k = 2"
    assert checkpoint.overrides.count() == 2


def test_an_override_keeps_its_authors_name(checkpoint, staff: User):
    row = CheckpointOverride.objects.create(
        checkpoint=checkpoint, fact="top_k", value=2, author=staff, author_name="vera"
    )
    staff.delete()
    row.refresh_from_db()
    assert (row.author, row.author_name) == (None, "vera")


def test_revisions_are_numbered_once_and_outlive_their_checkpoint(checkpoint):
    alias = ModelAlias.objects.create(name="chat")
    values = {"alias": alias, "number": 1, "checkpoint": checkpoint, "checkpoint_name": "tiny"}
    revision = AliasRevision.objects.create(**values)
    refused(lambda: AliasRevision.objects.create(**values))
    alias.current = revision
    alias.save()
    checkpoint.delete()
    revision.refresh_from_db()
    assert (revision.checkpoint, revision.checkpoint_name) == (None, "tiny")
    alias.delete()
    assert not AliasRevision.objects.exists()


def test_files_of_an_upload_have_one_number_and_one_name_each():
    upload = Upload.objects.create(served_model_name="tiny", size_bytes=2, active_at=timezone.now())
    UploadFile.objects.create(upload=upload, number=0, name="config.json", size_bytes=1)
    refused(lambda: UploadFile.objects.create(upload=upload, number=0, name="model.safetensors", size_bytes=1))
    refused(lambda: UploadFile.objects.create(upload=upload, number=1, name="config.json", size_bytes=1))
    UploadFile.objects.create(upload=upload, number=1, name="model.safetensors", size_bytes=1)
    assert [str(file) for file in upload.files.all()] == ["config.json", "model.safetensors"]
    assert str(upload) == "tiny (receiving)"


def test_an_upload_outlives_its_checkpoint_and_its_owner(checkpoint, staff: User):
    upload = Upload.objects.create(
        served_model_name="tiny", size_bytes=1, active_at=timezone.now(), checkpoint=checkpoint, owner=staff
    )
    checkpoint.delete()
    staff.delete()
    upload.refresh_from_db()
    assert (upload.checkpoint, upload.owner) == (None, None)
