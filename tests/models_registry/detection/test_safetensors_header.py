"""Hostile and legal headers: the verdict of each, its cost, and what the message says."""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
import time
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from inference.errors import CheckpointError, CorruptCheckpoint, UnsupportedFormat
from models_registry.detection.safetensors_header import MAX_TENSORS, read_header
from tests.faults.artefacts.case import write
from tests.faults.artefacts.headers import HOSTILE, LEGAL, header
from tests.models_registry.detection.builders import entry, framed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("name", LEGAL)
def test_legal_headers_are_read_as_the_library_reads_them(path: Path, name: str) -> None:
    path.write_bytes(LEGAL[name])
    found = read_header(path)
    oracle = {key: (info["dtype"], tuple(info["shape"])) for key, info in deserialize(LEGAL[name])}
    assert {key: (info.dtype, info.shape) for key, info in found.items()} == oracle
    content = LEGAL[name]
    for key, info in deserialize(content):
        assert content[found[key].begin : found[key].end] == bytes(info["data"])
        assert found[key].file == "model.safetensors"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused_quickly(path: Path, name: str) -> None:
    write(path, HOSTILE[name])
    began = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert time.process_time() - began < 4
    assert "model.safetensors" in caught.value.message
    assert len(caught.value.message) < 1000
    assert caught.value.param


def test_every_truncation_of_a_small_file_is_refused(path: Path) -> None:
    content = save({"a": np.zeros((2, 2), np.float32), "layers.0.b": np.ones(3, np.float16)}, metadata={"format": "pt"})
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CorruptCheckpoint):
            read_header(path)
    path.write_bytes(content)
    assert set(read_header(path)) == {"a", "layers.0.b"}


def test_every_changed_header_byte_is_refused_or_read_as_the_library_does(path: Path) -> None:
    content = bytearray(save({"a": np.zeros((2, 2), np.float32), "b": np.ones(3, np.float16)}))
    end = 8 + int.from_bytes(content[:8], "little")
    for position in range(end):
        for value in (0, 1, 0x20, 0x30, 0x7D, 0xFF, content[position] ^ 1):
            changed = bytes(content[:position]) + bytes([value]) + bytes(content[position + 1 :])
            path.write_bytes(changed)
            try:
                found = read_header(path)
            except CheckpointError:
                continue
            oracle = {key: tuple(info["shape"]) for key, info in deserialize(changed)}
            assert {key: info.shape for key, info in found.items()} == oracle


def test_more_tensors_than_the_limit_are_refused(path: Path) -> None:
    names = ",".join(f'"{n:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(MAX_TENSORS + 1))
    write(path, (framed("{" + names + "}"), 1 << 27))
    began = time.thread_time()
    with pytest.raises(CorruptCheckpoint, match=f"more than {MAX_TENSORS}"):
        read_header(path)
    refused = time.thread_time()
    json.loads("{" + names + "}")
    # A limit in seconds would be one of the machine: it takes 2.5 times as long as reading the same text does.
    assert refused - began < 5 * (time.thread_time() - refused)


def test_a_full_sized_header_stays_within_64_mib(tmp_path: Path) -> None:
    """The most expensive legal header, in a fresh process whose peak can be told."""
    count, data = 70_000, 90 << 20
    names = [f"model.layers.{number}.mlp.experts.gate_proj.weight" for number in range(count)]
    entries = [
        f'"{name}":{{"dtype":"F32","shape":[1,1],"data_offsets":[{4 * n},{4 * n + 4}]}}' for n, name in enumerate(names)
    ]
    entries.append(f'"last":{{"dtype":"U8","shape":[{data - 4 * count}],"data_offsets":[{4 * count},{data}]}}')
    content = framed("{" + ",".join(entries) + "}")
    assert (7 << 20) < len(content) < (8 << 20)
    path = tmp_path / "model.safetensors"
    write(path, (content, data))
    script = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        "from models_registry.detection.safetensors_header import read_header\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "print(len(read_header(Path(sys.argv[1]))), peak() - before, time.process_time())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    number, kib, seconds = run.stdout.split()
    assert int(number) == count + 1
    assert int(kib) < 64 << 10
    assert float(seconds) < 3.0  # 0.6 s on an idle core


class Canary:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def payloads(canary: Path) -> dict[str, bytes]:
    found = {f"pickle protocol {p}": pickle.dumps(Canary(canary), protocol=p) for p in range(6)}
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Canary(canary)))
    found["torch zip"] = archive.getvalue()
    array = BytesIO()
    np.save(array, np.array([Canary(canary)], dtype=object), allow_pickle=True)
    found["numpy object array"] = array.getvalue()
    found["gguf"] = b"GGUF" + bytes(100)
    found["git lfs pointer"] = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    found["html"] = b"<!DOCTYPE html><html></html>"
    return found


def test_other_kinds_of_files_are_refused_by_content(path: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for kind, content in payloads(canary).items():
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
        if kind not in ("pickle protocol 0", "pickle protocol 1"):  # those have no magic number
            assert isinstance(caught.value, UnsupportedFormat), kind
    assert not canary.exists()


def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    import os

    fifo = tmp_path / "model.safetensors"
    os.mkfifo(fifo)
    with pytest.raises(CorruptCheckpoint, match="not a regular file"):
        read_header(fifo)
    with pytest.raises(CorruptCheckpoint, match="can't be opened"):
        read_header(tmp_path / "absent.safetensors")
    with pytest.raises(CorruptCheckpoint):
        read_header(tmp_path)


def test_messages_name_the_tensor_and_the_rule(path: Path) -> None:
    path.write_bytes(
        framed(header(**{"layers.0.w": entry(offsets=(0, 4)), "layers.1.w": entry(offsets=(8, 12))}), bytes(12))
    )
    with pytest.raises(CorruptCheckpoint) as caught:
        read_header(path)
    assert "layers.1.w" in caught.value.message
    assert "must begin at 4" in caught.value.message
    assert caught.value.param == "layers.1.w"


def test_the_library_agrees_that_these_are_bad() -> None:
    """Cases that the library refuses too; where it is laxer (duplicates, extra members) we are on our own."""
    ours_alone = {
        "does not begin with {", "huge dimension behind 0", "rank 9", "rank 10^6", "duplicate name",
        "extra member", "NUL in a name", "path as a name", "absolute path as a name", "space in a name", "empty name",
        "name of 1 MiB", "header of 2 MiB in a file of 3",
        "duplicate member", "metadata twice",
    }  # fmt: skip
    for name, content in HOSTILE.items():
        if name in ours_alone or isinstance(content, tuple):
            continue
        with pytest.raises(SafetensorError):
            deserialize(content)


def test_reading_uses_little_memory_for_refused_files(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("length 2^63", "deep arrays", "one metadata string of 7 MiB", "7 MiB of brackets", "7 MiB of quotes"):
        write(path, HOSTILE[name])
        with pytest.raises(CheckpointError):
            read_header(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - baseline < 64 << 10
