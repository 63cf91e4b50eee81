"""The file store: bytes by digest, limits while they arrive, nothing left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference.errors import RequestTooLarge, StorageFull
from inference.files import store
from inference.files.store import FileWriter, file_path, open_file, remove, store_lock, sweep_strays


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path) -> Path:
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    return tmp_path / "files"


def unfinished(directory: Path) -> list[Path]:
    return list((directory / "tmp").iterdir())


def test_what_was_written_is_read_by_its_digest(own_store):
    writer = FileWriter()
    writer.write(b"one ")
    writer.write(b"two")
    with store_lock():
        sha256 = writer.publish()
    assert sha256 == hashlib.sha256(b"one two").hexdigest()
    with open_file(sha256) as file:
        assert file.read() == b"one two"
    assert writer.size_bytes == 7 and unfinished(own_store) == []
    writer.discard()  # harmless
    remove(sha256)
    assert not file_path(sha256).exists()
    with pytest.raises(FileNotFoundError):
        open_file(sha256)


def test_more_than_the_limit_is_refused_while_it_arrives(own_store):
    writer = FileWriter(max_bytes=4)
    writer.write(b"1234")
    with pytest.raises(RequestTooLarge, match="more than 4 bytes"):
        writer.write(b"5")
    assert unfinished(own_store) == []


def test_a_full_disk_is_found_before_anything_is_written(monkeypatch, own_store):
    monkeypatch.setattr(store, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(StorageFull):
        FileWriter()
    monkeypatch.setattr(store, "RESERVE_BYTES", 0)
    with pytest.raises(StorageFull):
        FileWriter(expected_bytes=1 << 60)
    assert unfinished(own_store) == []


_KILLED = """
import os
import signal
import sys

from django.conf import settings

from inference.files.store import FileWriter

settings.configure(BLAZR_FILES_DIR=sys.argv[1])
FileWriter().write(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_unfinished_files_of_killed_processes_are_swept(own_store):
    slow = FileWriter()
    assert subprocess.run([sys.executable, "-c", _KILLED, str(own_store)]).returncode == -signal.SIGKILL
    assert len(unfinished(own_store)) == 2
    assert sweep_strays(lambda digests: digests) == 0  # it may have been made this moment, and not be locked yet
    hour_ago = time.time() - 3600
    for path in unfinished(own_store):
        os.utime(path, (hour_ago, hour_ago))
    assert sweep_strays(lambda digests: digests) == 1
    assert unfinished(own_store) == [slow._path]
    slow.discard()


def test_bytes_that_no_row_names_are_swept_when_they_are_old():
    """A process was killed between the rename and its transaction."""
    digests = []
    for content in (b"named", b"unnamed", b"fresh"):
        writer = FileWriter()
        writer.write(content)
        digests.append(writer.publish())
    for digest in digests[:2]:
        os.utime(file_path(digest), (0, 0))
    asked = []

    def named(found):
        asked.append(set(found))
        return {digests[0]}

    assert sweep_strays(named) == 1
    assert asked == [set(digests[:2])]
    assert [file_path(digest).exists() for digest in digests] == [True, False, True]
