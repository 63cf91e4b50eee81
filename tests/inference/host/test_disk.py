"""Locks and folders of stores on this machine's disk."""

from __future__ import annotations

import errno

import pytest

from inference.errors import StorageFull
from inference.host.disk import full_disk_as_error, path_exists, staging_folder


def test_a_folder_of_a_process_that_was_killed_is_removed_and_one_in_use_is_not(tmp_path):
    left = tmp_path / ".staging-left"
    left.mkdir()
    (left / "file").touch()
    with staging_folder(tmp_path) as first, staging_folder(tmp_path) as second:
        assert not left.exists()
        assert first.is_dir() and second.is_dir() and first != second
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_of_ours():
    with pytest.raises(StorageFull, match="no room"), full_disk_as_error("no room"):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="other"), full_disk_as_error("no room"):
        raise OSError(errno.EIO, "other")


def test_a_path_that_the_system_cannot_look_at_does_not_exist(tmp_path):
    assert path_exists(tmp_path)
    assert not path_exists(tmp_path / "nothing")
    assert not path_exists(tmp_path / ("x" * 300))  # where the system says something else than "no such file"
