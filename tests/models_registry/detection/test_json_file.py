"""Small JSON files within limits."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.errors import CorruptCheckpoint
from models_registry.detection.json_file import MAX_CONFIG_BYTES, MAX_DEPTH, read_object, read_text


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"1", b"null", b'"x"', b"{", b'{"a":}', b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        b" " * (MAX_CONFIG_BYTES + 1),
        b'{"a": "\xff"}',
    ],
)  # fmt: skip
def test_broken_files_are_refused_quickly(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    began = time.process_time()
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        read_object(path)
    assert time.process_time() - began < 2


def test_what_older_tools_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": Infinity, "b": {"c": [1, {"d": null}]}}')
    assert read_object(path) == {"a": float("inf"), "b": {"c": [1, {"d": None}]}}


def test_limits_are_per_file(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("x" * 100)
    assert read_text(path, 100) == "x" * 100
    with pytest.raises(CorruptCheckpoint, match="100 bytes; the limit is 99"):
        read_text(path, 99)


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=64) | st.text(max_size=64).map(str.encode))
def test_arbitrary_bytes_never_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    try:
        value = read_object(path)
    except CorruptCheckpoint:
        return
    assert isinstance(value, dict)
    json.dumps(value)
