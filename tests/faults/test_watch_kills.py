"""A few steps of ``tests.faults.watch_kills``; the whole has 50."""

from __future__ import annotations

from pathlib import Path

from tests.faults import watch_kills
from tests.faults.trainer import files_of, write_step
from tests.faults.watch_kills import campaign

STEPS = 6


def test_each_checkpoint_is_one_revision_and_none_is_half(tmp_path: Path) -> None:
    report = campaign(tmp_path, steps=STEPS, seed=1)
    assert report.problems == []
    assert report.num_revisions == STEPS
    assert report.num_checked >= STEPS


def test_half_a_file_would_be_found(tmp_path: Path) -> None:
    """The judge of the campaign itself."""
    write_step(tmp_path, 4, iter(lambda: 0.0, None))
    ((name, content),) = files_of(4).items()
    file = tmp_path / name
    status = file.stat()
    stamp = {"name": name, "size_bytes": len(content), "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
    assert watch_kills._problem(4, [stamp], tmp_path, tmp_path) is None
    assert "was registered with 7 of" in watch_kills._problem(4, [{**stamp, "size_bytes": 7}], tmp_path, tmp_path)
    assert watch_kills._problem(4, [], tmp_path, tmp_path) == f"{name} isn't registered"
    assert watch_kills._problem(4, [{**stamp, "mtime_ns": 1}], tmp_path, tmp_path) == ""
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    status = file.stat()
    stamp |= {"mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
    assert "with other bytes than the trainer's" in watch_kills._problem(4, [stamp], tmp_path, tmp_path)
