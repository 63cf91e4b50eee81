"""Files by digest: whole, within a budget, kept for an hour, and swept."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from inference.errors import ChecksumMismatch, InvalidRequest, NotFound, RequestTooLarge, StorageFull
from models_registry import received_blobs, storage
from models_registry.received_blobs import blob_hold, blob_receive, digest_of, received_sweep

CONTENT = b"content" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def place(tmp_path, settings):
    settings.BLAZR_BLOBS_DIR = tmp_path / "blobs"
    settings.BLAZR_UPLOADS_DIR = tmp_path / "uploads"
    settings.BLAZR_MAX_UPLOAD_BYTES = 1 << 20
    return tmp_path / "blobs"


def names(place) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_digest_is_read_in_both_spellings():
    assert digest_of(f"sha256:{DIGEST}") == digest_of(f"sha256-{DIGEST}") == DIGEST
    for text in (DIGEST, f"sha256:{DIGEST[:-1]}", f"sha256:{DIGEST.upper()}", "sha256:../../etc/passwd"):
        with pytest.raises(InvalidRequest):
            digest_of(text)


def test_a_file_is_kept_until_its_hour_has_passed(place, monkeypatch):
    blob_receive(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    assert names(place) == {DIGEST, f"received/{DIGEST}", f"received/{DIGEST}.held"}
    assert blob_hold(DIGEST).read_bytes() == CONTENT
    assert storage.prune_blobs() == received_sweep() == 0
    os.utime(place / "received" / f"{DIGEST}.held", (0, 0))
    blob_hold(DIGEST)  # asked for again: another hour
    assert received_sweep() == 0
    os.utime(place / "received" / f"{DIGEST}.held", (0, 0))
    assert (received_sweep(), storage.prune_blobs()) == (1, 1)
    assert names(place) == set()
    with pytest.raises(NotFound):
        blob_hold(DIGEST)


def test_a_kill_between_link_and_note_leaves_nothing_for_ever(place, monkeypatch):
    blob_receive(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    (place / "received" / f"{DIGEST}.held").unlink()
    (place / "received" / DIGEST).unlink()
    link = os.link

    def killed_after(*places):
        link(*places)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", killed_after)
    with pytest.raises(KeyboardInterrupt):
        blob_hold(DIGEST)
    monkeypatch.undo()
    os.utime(place / "received" / f"{DIGEST}.held", (0, 0))
    assert (received_sweep(), storage.prune_blobs()) == (1, 1)
    assert names(place) == set()


def test_nothing_is_left_of_what_is_refused(place, settings, monkeypatch):
    with pytest.raises(ChecksumMismatch):
        blob_receive("0" * 64, io.BytesIO(CONTENT), len(CONTENT))
    settings.BLAZR_MAX_UPLOAD_BYTES = 10
    for declared in (len(CONTENT), 0):  # a body in chunks has no length
        with pytest.raises(RequestTooLarge):
            blob_receive(DIGEST, io.BytesIO(CONTENT), declared)
    settings.BLAZR_MAX_UPLOAD_BYTES = 1 << 20
    monkeypatch.setattr(storage, "free_bytes", lambda: 1 << 20)
    with pytest.raises(StorageFull):
        blob_receive(DIGEST, io.BytesIO(CONTENT), len(CONTENT))

    class Broken(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            raise ConnectionError

    monkeypatch.undo()
    with pytest.raises(ConnectionError):
        blob_receive(DIGEST, Broken(), 5)
    assert names(place) == set()


def test_waiting_files_count_together(place, settings, monkeypatch):
    settings.BLAZR_MAX_UPLOAD_BYTES = 10_000
    blob_receive(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    blob_receive(DIGEST, io.BytesIO(b""), 0)  # it is here, so the body isn't read
    other = CONTENT + b"x"
    with pytest.raises(RequestTooLarge, match="together"):
        blob_receive(hashlib.sha256(other).hexdigest(), io.BytesIO(other), len(other))
    monkeypatch.setattr(received_blobs, "MAX_FILES", 1)
    with pytest.raises(RequestTooLarge):
        blob_receive(hashlib.sha256(b"x").hexdigest(), io.BytesIO(b"x"), 1)


def test_parts_of_killed_processes_are_swept(place):
    (place / "received").mkdir(parents=True)
    (place / "received" / "abc.part").write_bytes(b"half")
    with received_blobs._part() as (part, _):
        assert received_sweep() == 1
        assert part.exists()
    assert names(place) == set()


def test_files_that_a_model_has_wait_no_more(place, settings, tmp_path, monkeypatch):
    settings.BLAZR_MAX_UPLOAD_BYTES = 10_000
    monkeypatch.setattr(received_blobs, "MAX_FILES", 1)
    blob_receive(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    os.link(place / DIGEST, tmp_path / "linked")  # as a checkpoint does
    other = CONTENT + b"x"
    blob_receive(hashlib.sha256(other).hexdigest(), io.BytesIO(other), len(other))


def test_files_that_go_while_they_are_counted_are_not_counted(place, monkeypatch):
    (place / "received").mkdir(parents=True)
    (place / "received" / "abc.part").write_bytes(b"half")
    iterdir = Path.iterdir

    def listed(self):
        found = list(iterdir(self))
        (place / "received" / "abc.part").unlink(missing_ok=True)
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", listed)
    blob_receive(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
