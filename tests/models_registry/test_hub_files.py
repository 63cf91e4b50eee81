"""Large files of the hub: resumed, checked, and found by the hub's library."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download
from huggingface_hub.utils.tqdm import tqdm

from inference.errors import ChecksumMismatch
from models_registry.hub_files import fetch_into_cache
from tests.models_registry.tiny_hub import COMMIT, tiny_hub

NAME = "model.safetensors"


@pytest.fixture
def hub(hybrid):
    with tiny_hub(hybrid) as found:
        yield found


def fetch(hub, cache, sha256: str) -> None:
    endpoint, handler = hub
    fetch_into_cache(
        "org/tiny", NAME, commit=COMMIT, sha256=sha256, size_bytes=len(handler.files[NAME]), endpoint=endpoint,
        cache_dir=cache, bar=tqdm,
    )  # fmt: skip


def test_a_part_is_gone_on_with_and_the_library_finds_the_file(hub, tmp_path):
    endpoint, handler = hub
    content = handler.files[NAME]
    digest = hashlib.sha256(content).hexdigest()
    blobs = tmp_path / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest}.blazr-part").write_bytes(content[:100])
    fetch(hub, tmp_path, digest)
    assert handler.resumed == [100]
    assert (blobs / digest).read_bytes() == content
    asked = list(handler.asked)
    path = hf_hub_download("org/tiny", NAME, revision=COMMIT, endpoint=endpoint, cache_dir=tmp_path)
    fetch(hub, tmp_path, digest)
    assert handler.asked == asked
    assert Path(path).read_bytes() == content


def test_a_part_that_is_too_long_begins_anew(hub, tmp_path):
    content = hub[1].files[NAME]
    digest = hashlib.sha256(content).hexdigest()
    blobs = tmp_path / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{digest}.blazr-part").write_bytes(content + b"more")
    fetch(hub, tmp_path, digest)
    assert hub[1].resumed == []
    assert (blobs / digest).read_bytes() == content


def test_a_file_that_is_longer_than_stated_leaves_nothing(hub, tmp_path):
    endpoint, _ = hub
    with pytest.raises(OSError, match="Consistency check failed"):
        fetch_into_cache(
            "org/tiny", NAME, commit=COMMIT, sha256="0" * 64, size_bytes=100, endpoint=endpoint, cache_dir=tmp_path,
            bar=tqdm,
        )  # fmt: skip
    assert not list(tmp_path.rglob("*.blazr-part"))


def test_nothing_is_kept_of_a_file_with_another_digest(hub, tmp_path):
    with pytest.raises(ChecksumMismatch, match="pull it again"):
        fetch(hub, tmp_path, "0" * 64)
    left = [
        path
        for path in (tmp_path / "models--org--tiny").rglob("*")
        if path.is_file() and not path.name.endswith("-lock")
    ]
    assert left == []
