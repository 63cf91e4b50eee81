"""Uploaded bytes: kept once, read-only, removed when nothing links to them, safe beside other processes."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from inference.errors import StorageFull
from models_registry import storage

pytestmark = pytest.mark.usefixtures("storage_dirs")

CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def received(upload_id: uuid.UUID, number: int = 0, content: bytes = CONTENT) -> Path:
    part = storage.part_path(upload_id, number)
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)
    return part


def place() -> Path:
    directory = storage.checkpoint_path(uuid.uuid4())
    directory.mkdir(parents=True)
    return directory / "model.safetensors"


def test_directories_are_private_and_names_are_ours(storage_dirs: Path):
    upload_id = uuid.uuid4()
    for directory in (storage.uploads_dir(), storage.blobs_dir(), storage.checkpoints_dir()):
        assert directory.is_relative_to(storage_dirs)
        assert directory.stat().st_mode & 0o777 == 0o700
    assert storage.part_path(upload_id, 3) == storage.uploads_dir() / str(upload_id) / "3.part"
    assert storage.free_bytes() > 0


def test_the_digest_is_of_the_content_and_can_be_given_up(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    counts: list[int] = []
    assert storage.sha256_file(path, counts.append) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert counts == [1 << 20] * 3

    def give_up(count: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        storage.sha256_file(path, give_up)


def test_a_published_file_is_a_read_only_blob_with_a_link():
    part, target = received(uuid.uuid4()), place()
    storage.publish_file(part, DIGEST, target)
    blob = storage.blobs_dir() / DIGEST
    assert not part.exists()
    assert target.read_bytes() == CONTENT
    assert target.samefile(blob)
    assert blob.stat().st_mode & 0o777 == 0o444
    assert blob.stat().st_nlink == 2


def test_the_same_content_is_kept_once():
    targets = [place() for _ in range(3)]
    for target in targets:
        storage.publish_file(received(uuid.uuid4()), DIGEST, target)
    assert [path.name for path in storage.blobs_dir().iterdir() if not path.name.startswith(".")] == [DIGEST]
    assert all(target.samefile(targets[0]) for target in targets)


def test_without_hard_links_the_file_itself_moves(monkeypatch):
    def refused(*args: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    part, target = received(uuid.uuid4()), place()
    storage.publish_file(part, DIGEST, target)
    assert target.read_bytes() == CONTENT
    assert not part.exists()


def test_other_errors_of_the_disk_are_not_hidden(monkeypatch):
    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "link", broken)
    part, target = received(uuid.uuid4()), place()
    with pytest.raises(OSError, match="broken"):
        storage.publish_file(part, DIGEST, target)
    assert part.exists()
    assert not target.exists()


def test_a_blob_goes_with_the_last_checkpoint_that_links_to_it():
    first, second = place(), place()
    for target in (first, second):
        storage.publish_file(received(uuid.uuid4()), DIGEST, target)
    blob = storage.blobs_dir() / DIGEST
    (storage.blobs_dir() / "not-a-digest").write_text("x")
    assert storage.prune_blobs() == 0
    storage.remove_checkpoint_files(first.parent.name)
    assert blob.exists()
    storage.remove_checkpoint_files(second.parent.name)
    assert not blob.exists()
    assert (storage.blobs_dir() / "not-a-digest").exists()


def test_removing_what_is_not_there_is_no_error():
    storage.remove_upload_files(uuid.uuid4())
    storage.remove_checkpoint_files(uuid.uuid4())
    upload_id = uuid.uuid4()
    received(upload_id)
    storage.remove_upload_files(upload_id)
    assert not (storage.uploads_dir() / str(upload_id)).exists()


def test_one_process_at_a_time_checks_an_upload():
    upload_id = uuid.uuid4()
    with storage.upload_lock(upload_id) as held:
        assert held
        with storage.upload_lock(upload_id) as again:
            assert not again
        with storage.upload_lock(uuid.uuid4()) as other:
            assert other
    with storage.upload_lock(upload_id) as held:
        assert held


def test_a_killed_process_holds_no_lock():
    upload_id = uuid.uuid4()
    directory = storage.uploads_dir() / str(upload_id)
    directory.mkdir()
    script = (
        "import fcntl, os, sys, time; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600);"
        "fcntl.flock(fd, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(directory / "lock")], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        with storage.upload_lock(upload_id) as held:
            assert not held
        process.kill()
        process.wait()
        with storage.upload_lock(upload_id) as held:
            assert held
    finally:
        process.kill()
        process.communicate()


def test_a_full_disk_is_an_error_that_says_what_to_do():
    with pytest.raises(StorageFull, match="free some space"), storage.full_disk_as_error():
        raise OSError(errno.ENOSPC, "No space left on device")
