"""Uploads end as a checkpoint, or as a reason with nothing left behind."""

from __future__ import annotations

import hashlib
import io
import os
import resource
import struct
from pathlib import Path

import pytest

from inference.errors import (
    BlazrError,
    Conflict,
    CorruptCheckpoint,
    InvalidRequest,
    NotFound,
    QueueFull,
    RequestTooLarge,
    StorageFull,
)
from models_registry import selectors, services, storage, uploads
from models_registry.aliases import alias_promote
from models_registry.models import Checkpoint, Upload, UploadFile
from models_registry.sweep import storage_sweep
from models_registry.upload_rules import CHUNK_BYTES, DeclaredFile

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


def declared(directory: Path, **digests: str) -> list[DeclaredFile]:
    return [
        DeclaredFile(file.name, file.stat().st_size, digests.get(file.stem, "")) for file in sorted(directory.iterdir())
    ]


def begin(directory: Path, name: str = "sent", **digests: str) -> Upload:
    return uploads.upload_create(owner=None, served_model_name=name, files=declared(directory, **digests))


def send(upload: Upload, directory: Path, piece: int = 4096) -> None:
    for file in upload.files.all():
        content = (directory / file.name).read_bytes()
        for offset in range(file.received_bytes, len(content), piece):
            put(upload, file.number, offset, content[offset : offset + piece])


def put(upload: Upload, number: int, offset: int, content: bytes) -> UploadFile:
    return uploads.upload_receive(upload_id=upload.pk, number=number, offset=offset, body=io.BytesIO(content))


def left_behind(root: Path) -> list[str]:
    """Files below the storage directories, locks aside."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.name not in (".lock", "lock"))


def test_a_directory_becomes_a_checkpoint(hybrid: Path, storage_dirs: Path) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)
    done = uploads.upload_finish(upload_id=upload.pk, wait=True)
    assert (done.state, done.reason) == ("done", "")
    row = selectors.checkpoint_get_by_name("sent")
    assert (row.pk, row.source, row.num_layers) == (upload.pk, "upload", 3)
    for file in hybrid.iterdir():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        stored = Path(row.directory) / file.name
        blob = storage.blobs_dir() / digest
        assert stored.samefile(blob)
        assert stored.stat().st_mode & 0o777 == 0o444
        assert digest in {stamp["sha256"] for stamp in row.file_stamps}
    assert list(storage.uploads_dir().iterdir()) == []
    services.checkpoint_files_verify(row)
    services.checkpoint_delete(checkpoint=row)
    assert left_behind(storage_dirs) == []


def test_a_bare_file_becomes_a_checkpoint(hybrid: Path) -> None:
    (hybrid / "config.json").unlink()
    upload = begin(hybrid)
    send(upload, hybrid)
    assert uploads.upload_finish(upload_id=upload.pk, wait=True).state == "done"


def test_equal_files_are_stored_once(hybrid: Path) -> None:
    for name in ("one", "two"):
        upload = begin(hybrid, name)
        send(upload, hybrid)
        assert uploads.upload_finish(upload_id=upload.pk, wait=True).state == "done"
    assert len([blob for blob in storage.blobs_dir().iterdir() if len(blob.name) == 64]) == 2
    services.checkpoint_delete(checkpoint=selectors.checkpoint_get_by_name("one"))
    services.checkpoint_files_verify(selectors.checkpoint_get_by_name("two"))


def test_a_filesystem_without_hard_links_will_do(hybrid: Path, storage_dirs: Path, monkeypatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    upload = begin(hybrid)
    send(upload, hybrid)
    assert uploads.upload_finish(upload_id=upload.pk, wait=True).state == "done"
    storage_sweep()
    row = selectors.checkpoint_get_by_name("sent")
    services.checkpoint_files_verify(row)
    services.checkpoint_delete(checkpoint=row)
    assert left_behind(storage_dirs) == []


# --- pieces ------------------------------------------------------------------------------------


def test_an_upload_goes_on_where_it_stopped(hybrid: Path) -> None:
    upload = begin(hybrid)
    weights = upload.files.get(name="model.safetensors")
    content = (hybrid / weights.name).read_bytes()
    put(upload, weights.number, 0, content[:1000])
    with pytest.raises(Conflict, match="go on at 1000"):
        put(upload, weights.number, 0, content[:1000])
    with pytest.raises(Conflict, match="go on at 1000"):
        put(upload, weights.number, 2000, content[2000:])
    with pytest.raises(Conflict, match="send the rest first"):
        uploads.upload_finish(upload_id=upload.pk, wait=True)
    send(Upload.objects.get(), hybrid)
    assert uploads.upload_finish(upload_id=upload.pk, wait=True).state == "done"


def test_lying_sizes_are_cut(hybrid: Path) -> None:
    upload = begin(hybrid)
    config = upload.files.get(name="config.json")
    with pytest.raises(RequestTooLarge, match="declared size"):
        put(upload, config.number, 0, b"x" * (config.size_bytes + 1))
    assert UploadFile.objects.get(pk=config.pk).received_bytes == 0
    with pytest.raises(InvalidRequest, match="is empty"):
        put(upload, config.number, 0, b"")


class Endless:
    """A body that never ends, and counts what was taken of it."""

    taken = 0

    def read(self, size: int) -> bytes:
        self.taken += size
        return b"\0" * size


def test_an_endless_body_is_cut_after_one_piece() -> None:
    files = [DeclaredFile("model.safetensors", 1 << 30)]
    upload = uploads.upload_create(owner=None, served_model_name="endless", files=files)
    body = Endless()
    with pytest.raises(RequestTooLarge, match="limit of"):
        uploads.upload_receive(upload_id=upload.pk, number=0, offset=0, body=body)
    assert body.taken <= CHUNK_BYTES + 1


def test_a_false_header_is_refused_with_the_first_piece(storage_dirs: Path) -> None:
    files = [DeclaredFile("model.safetensors", 1 << 20)]
    for head in (struct.pack("<Q", 1 << 63) + b"{", struct.pack("<Q", 50) + b"\x80", b"\x80\x04" + b"." * 20):
        upload = uploads.upload_create(owner=None, served_model_name="false", files=files)
        with pytest.raises(CorruptCheckpoint, match="doesn't begin like"):
            put(upload, 0, 0, head)
        upload.refresh_from_db()
        assert upload.state == "refused"
        assert "doesn't begin like" in upload.reason
    assert left_behind(storage_dirs) == []


def test_unknown_uploads_and_files(hybrid: Path) -> None:
    upload = begin(hybrid)
    with pytest.raises(NotFound):
        put(upload, 99, 0, b"x")
    Upload.objects.all().delete()
    with pytest.raises(NotFound):
        uploads.upload_finish(upload_id=upload.pk)


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["truncate", "overlap", "strange tensors", "config"])
def test_broken_checkpoints_are_refused_with_the_reason(hybrid: Path, storage_dirs: Path, spoil: str) -> None:
    weights = hybrid / "model.safetensors"
    if spoil == "truncate":
        os.truncate(weights, weights.stat().st_size - 8)
    elif spoil == "overlap":
        content = weights.read_bytes()
        weights.write_bytes(content.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1))
    elif spoil == "strange tensors":
        raw = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        weights.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(4))
    else:
        (hybrid / "config.json").write_text("{" * 2000)
    upload = begin(hybrid)
    send(upload, hybrid)
    ended = uploads.upload_finish(upload_id=upload.pk, wait=True)
    assert ended.state == "refused"
    assert len(ended.reason) > 20
    assert not Checkpoint.objects.exists()
    assert left_behind(storage_dirs) == []
    with pytest.raises(Conflict):
        put(upload, 0, 0, b"x")


def test_a_wrong_digest_is_refused_and_a_right_one_taken(hybrid: Path, storage_dirs: Path) -> None:
    upload = begin(hybrid, model="0" * 64)
    send(upload, hybrid)
    ended = uploads.upload_finish(upload_id=upload.pk, wait=True)
    assert ended.state == "refused"
    assert "SHA-256" in ended.reason
    assert left_behind(storage_dirs) == []
    right = hashlib.sha256((hybrid / "model.safetensors").read_bytes()).hexdigest()
    again = begin(hybrid, model=right)
    send(again, hybrid)
    assert uploads.upload_finish(upload_id=again.pk, wait=True).state == "done"


def test_a_name_that_is_taken_is_refused_before_anything_is_sent(hybrid: Path) -> None:
    services.checkpoint_register(path=hybrid, served_model_name="sent")
    with pytest.raises(Conflict, match="taken"):
        begin(hybrid)


def test_a_name_of_an_alias_is_refused_before_anything_is_sent(hybrid: Path) -> None:
    row = services.checkpoint_register(path=hybrid, served_model_name="tiny")
    alias_promote(name="sent", checkpoint=row)
    with pytest.raises(Conflict, match="an alias"):
        begin(hybrid)
    assert not Upload.objects.exists()


def test_cancelling_removes_everything_and_is_final(hybrid: Path, storage_dirs: Path) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)
    assert uploads.upload_cancel(upload_id=upload.pk).state == "cancelled"
    assert uploads.upload_cancel(upload_id=upload.pk).state == "cancelled"
    assert left_behind(storage_dirs) == []
    with pytest.raises(Conflict):
        uploads.upload_finish(upload_id=upload.pk, wait=True)
    assert not Checkpoint.objects.exists()


def test_cancelling_while_it_is_checked(hybrid: Path, storage_dirs: Path) -> None:
    upload = begin(hybrid)
    send(upload, hybrid)

    def inspect(path: Path, **options: object) -> object:
        uploads.upload_cancel(upload_id=upload.pk)
        assert not path.exists()
        from models_registry.detection.inspection import inspect_checkpoint

        return inspect_checkpoint(hybrid)

    assert uploads.upload_finish(upload_id=upload.pk, wait=True, inspect=inspect).state == "cancelled"
    assert not Checkpoint.objects.exists()
    assert left_behind(storage_dirs) == []


def test_too_many_open_uploads(hybrid: Path, monkeypatch) -> None:
    monkeypatch.setattr(uploads, "MAX_OPEN_UPLOADS", 1)
    begin(hybrid)
    with pytest.raises(QueueFull):
        begin(hybrid, "another")


def test_the_size_limit_is_the_settings(hybrid: Path, settings) -> None:
    settings.BLAZR_MAX_UPLOAD_BYTES = 1024
    with pytest.raises(RequestTooLarge, match="the limit is 1024"):
        begin(hybrid)


# --- full disks ----------------------------------------------------------------------------------


def test_no_room_is_said_before_the_first_byte(hybrid: Path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "free_bytes", lambda: uploads.DISK_RESERVE_BYTES + 100)
    with pytest.raises(StorageFull, match="100 to give"):
        begin(hybrid)
    assert not Upload.objects.exists()


def test_open_uploads_are_counted_against_the_room(hybrid: Path, monkeypatch) -> None:
    total = sum(file.stat().st_size for file in hybrid.iterdir())
    monkeypatch.setattr(storage, "free_bytes", lambda: uploads.DISK_RESERVE_BYTES + total + 10)
    begin(hybrid)
    with pytest.raises(StorageFull):
        begin(hybrid, "another")


def test_a_disk_that_fills_up_ends_the_upload(hybrid: Path, storage_dirs: Path, monkeypatch) -> None:
    """The file size limit stands for the disk: both let a part of the piece through, then fail."""
    upload = begin(hybrid)
    weights = upload.files.get(name="model.safetensors")
    content = (hybrid / weights.name).read_bytes()
    put(upload, weights.number, 0, content[:4096])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    pwrite = os.pwrite

    def limited(descriptor: int, view: memoryview, position: int) -> int:
        # Only around this write: the database's files are longer than the limit.
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
        try:
            return pwrite(descriptor, view, position)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(os, "pwrite", limited)
    with pytest.raises(StorageFull, match="no room") as caught:
        put(upload, weights.number, 4096, content[4096:])
    assert caught.value.http_status == 507
    upload.refresh_from_db()
    assert (upload.state, "no room" in upload.reason) == ("refused", True)
    assert left_behind(storage_dirs) == []


def test_every_error_of_uploads_is_ours(hybrid: Path) -> None:
    """A file that vanished from under a check is a refusal, not a stuck row."""
    upload = begin(hybrid)
    send(upload, hybrid)
    storage.part_path(upload.pk, 0).unlink()
    ended = uploads.upload_finish(upload_id=upload.pk, wait=True)
    assert ended.state == "refused"
    assert issubclass(uploads.UploadCancelled, BlazrError)
