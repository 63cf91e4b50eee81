"""Uploads whose names are taken meanwhile keep their bytes, and end under other names."""

from __future__ import annotations

import io
from hashlib import sha256
from pathlib import Path

import pytest
from django.test import Client

from inference.errors import BlazrError, Conflict
from models_registry import selectors, services, uploads
from models_registry.creations import Creation, creation_begin, creation_finish
from models_registry.detection.inspection import Inspection, inspect_checkpoint
from models_registry.models import Checkpoint, Upload
from models_registry.received_blobs import blob_receive
from models_registry.sweep import storage_sweep
from models_registry.upload_names import NAME_TAKEN
from tests.models_registry.test_uploads import begin, left_behind, send

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


@pytest.fixture
def whole(hybrid: Path) -> Upload:
    """An upload of all bytes, named ``sent``."""
    upload = begin(hybrid)
    send(upload, hybrid)
    return upload


def take_name(tmp_path: Path, name: str = "sent") -> None:
    """Register another checkpoint under a name."""
    place = tmp_path / f"other-{name}"
    place.mkdir()
    for file in (tmp_path / "tiny-hybrid").iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    services.checkpoint_register(path=place, served_model_name=name)


def finish(upload: Upload, name: str = "", **options: object) -> Upload:
    return uploads.upload_finish(upload_id=upload.pk, served_model_name=name, wait=True, **options)


def test_a_name_that_was_taken_while_bytes_were_sent(whole: Upload, tmp_path: Path) -> None:
    take_name(tmp_path)
    with pytest.raises(Conflict, match="keeps its bytes") as caught:
        finish(whole)
    assert caught.value.param == "served_model_name"
    whole.refresh_from_db()
    assert (whole.state, whole.stage, whole.num_checks) == ("receiving", NAME_TAKEN, 0)
    done = finish(whole, "second")
    assert (done.state, done.reason, done.stage) == ("done", "", "")
    row = selectors.checkpoint_get_by_name("second")
    assert row.pk == whole.pk
    services.checkpoint_files_verify(row)


def test_a_name_that_is_taken_while_the_files_are_checked(whole: Upload, tmp_path: Path) -> None:
    def inspect(path: Path, **options: object) -> Inspection:
        take_name(tmp_path)
        return inspect_checkpoint(path)

    waiting = finish(whole, inspect=inspect)
    assert (waiting.state, waiting.stage, waiting.num_checks) == ("receiving", NAME_TAKEN, 0)
    storage_sweep()  # its files are published already
    assert uploads.uploads_recheck() is None
    assert finish(whole, "second").state == "done"
    services.checkpoint_files_verify(selectors.checkpoint_get_by_name("second"))


def test_a_name_that_can_not_be_had_changes_nothing_but_the_name(
    whole: Upload, tmp_path: Path, storage_dirs: Path
) -> None:
    take_name(tmp_path)
    take_name(tmp_path, "second")
    for name, named in (("", "sent"), ("second", "second"), ("a b", "second"), ("x" * 97, "second")):
        with pytest.raises(BlazrError) as caught:
            finish(whole, name)
        assert caught.value.param == "served_model_name"
        whole.refresh_from_db()
        assert (whole.state, whole.served_model_name) == ("receiving", named)
    assert uploads.upload_cancel(upload_id=whole.pk).state == "cancelled"
    assert left_behind(storage_dirs) == []


def test_an_upload_that_is_being_checked_keeps_its_name(whole: Upload) -> None:
    def inspect(path: Path, **options: object) -> Inspection:
        with pytest.raises(Conflict, match="being checked as 'sent'"):
            finish(whole, "second")
        assert finish(whole, "sent").state == "checking"
        return inspect_checkpoint(path)

    assert finish(whole, inspect=inspect).served_model_name == "sent"


def test_one_that_waits_for_a_name_delays_no_check_of_another(whole: Upload, tmp_path: Path) -> None:
    take_name(tmp_path)
    Upload.objects.filter(pk=whole.pk).update(num_checks=1)  # a process died that checked it
    assert uploads.uploads_recheck() is None
    whole.refresh_from_db()
    assert (whole.state, whole.num_checks) == ("receiving", 0)


def test_the_name_over_http_and_on_the_page(browser: Client, whole: Upload, tmp_path: Path) -> None:
    take_name(tmp_path)
    address = f"/registry/uploads/{whole.pk}/finish"
    refused = browser.post(address, content_type="application/json")
    assert (refused.status_code, refused.json()["error"]["param"]) == (409, "served_model_name")
    text = browser.get("/models/upload/").content.decode()
    assert f'data-finish="{whole.pk}"' in text and NAME_TAKEN in text and "data-resume" not in text
    wrong = browser.post(address, {"served_model_name": "a b"}, content_type="application/json")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "served_model_name")


def test_a_creation_whose_name_is_taken_leaves_nothing(hybrid: Path, tmp_path: Path) -> None:
    files = {file.name: file.read_bytes() for file in hybrid.iterdir()}
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    for name, content in files.items():
        blob_receive(digests[name], io.BytesIO(content), len(content))
    creation = Creation(name="made", files=digests)
    upload = creation_begin(creation)
    take_name(tmp_path, "made")
    with pytest.raises(Conflict, match="'made' is taken"):
        creation_finish(creation, upload)
    assert uploads.upload_get(upload).state == "cancelled" and Checkpoint.objects.count() == 1
    again = Creation(name="other", files=digests)
    assert creation_finish(again, creation_begin(again)).served_model_name == "other"
