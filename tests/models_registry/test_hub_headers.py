"""GGUF models of a hub on loopback, inspected by their headers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.errors import CorruptCheckpoint, Unavailable, UnsupportedArchitecture, UnsupportedFormat
from models_registry import hub_headers
from models_registry.hub_files import RemoteFile
from models_registry.hub_headers import FIRST_BYTES, LATER_BYTES, inspect_headers
from tests.models_registry.gguf_content import llama_gguf, split_llama
from tests.models_registry.tiny_hub import COMMIT, Hub, tiny_hub

VOCAB = 30_000
"""So that the last tensor isn't in the first bytes."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Hub]]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    (tmp_path / "empty").mkdir()
    with tiny_hub(tmp_path / "empty") as found:
        yield found


def look(hub, cache: Path, *names: str):
    endpoint, handler = hub
    files = [
        RemoteFile(name, len(handler.files[name]), hashlib.sha256(handler.files[name]).hexdigest()) for name in names
    ]
    return inspect_headers("org/tiny", COMMIT, files, endpoint=endpoint, cache_dir=cache)


@pytest.mark.parametrize("takes_ranges", [True, False])
def test_a_header_is_enough_and_little_is_fetched(hub, tmp_path: Path, takes_ranges: bool) -> None:
    _, handler = hub
    content = llama_gguf(VOCAB)
    handler.files["a/m.gguf"], handler.takes_ranges = content, takes_ranges
    found = look(hub, tmp_path, "a/m.gguf")
    assert (found.spec.model_type, found.spec.vocab_size, len(found.spec.layers)) == ("llama", VOCAB, 1)
    assert found.size_bytes == len(content)
    # The factors of the rotation come from the end of the file, nothing from between.
    assert "8.0" in str(found.spec.layers[0].token_mixer) and len(content) > 4 * FIRST_BYTES
    if takes_ranges:
        assert handler.ranges[0] == (0, FIRST_BYTES) and handler.ranges[-1][1] > len(content) - 64
        assert sum(end - begin for begin, end in handler.ranges) < 2 * FIRST_BYTES
    assert list((tmp_path / "own" / "blazr" / "headers").iterdir()) == []


def test_a_long_header_is_fetched_in_growing_pieces(hub, tmp_path: Path) -> None:
    _, handler = hub
    handler.files["m.gguf"] = llama_gguf(120_000)
    assert look(hub, tmp_path, "m.gguf").spec.vocab_size == 120_000
    assert handler.ranges[:2] == [(0, FIRST_BYTES), (FIRST_BYTES, 4 * FIRST_BYTES)]


def test_the_headers_of_all_parts_are_read(hub, tmp_path: Path) -> None:
    names = [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    hub[1].files |= dict(zip(names, split_llama(), strict=True))
    assert look(hub, tmp_path, *names).weight_files == tuple(names)


def test_all_headers_together_have_a_limit(hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file split into thousands of parts could have a header of 32 MiB in each."""
    _, handler = hub
    names = [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    handler.files |= dict(zip(names, split_llama(vocab=2000), strict=True))
    sizes = [len(handler.files[name]) for name in names]
    assert FIRST_BYTES > sizes[0] > sizes[1] > LATER_BYTES > sizes[2]
    limit = sizes[0] + LATER_BYTES + sizes[2]
    monkeypatch.setattr(hub_headers, "MAX_JOINT_BYTES", limit)
    assert look(hub, tmp_path, *names).weight_files == tuple(names)
    assert handler.ranges == [(0, sizes[0]), (0, LATER_BYTES), (0, sizes[2])]
    monkeypatch.setattr(hub_headers, "MAX_JOINT_BYTES", limit - 1)
    with pytest.raises(UnsupportedFormat) as found:
        look(hub, tmp_path, *names)
    assert "the headers of m-00001-of-00003.gguf take" in found.value.message
    assert "up to part 3 of 3, the limit of all together is" in found.value.message
    assert "choose another file, or join the parts" in found.value.message
    assert handler.ranges[3:] == [(0, sizes[0]), (0, LATER_BYTES)], "nothing was fetched of the part beyond the limit"
    assert list((tmp_path / "own" / "blazr" / "headers").iterdir()) == []


def test_what_an_earlier_pull_left_is_not_fetched_again(hub, tmp_path: Path) -> None:
    content = llama_gguf()
    hub[1].files["m.gguf"] = content
    blobs = tmp_path / "models--org--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / hashlib.sha256(content).hexdigest()).write_bytes(content)
    assert look(hub, tmp_path, "m.gguf").spec.model_type == "llama"
    assert hub[1].ranges == []


def test_what_would_be_refused_is_refused(hub, tmp_path: Path) -> None:
    _, handler = hub
    handler.files["m.gguf"] = llama_gguf(architecture="unheard-of")
    with pytest.raises(UnsupportedArchitecture, match="'unheard-of', which is not read"):
        look(hub, tmp_path, "m.gguf")
    handler.files["m.gguf"] = llama_gguf()[:2000]
    with pytest.raises(CorruptCheckpoint, match="truncated"):
        look(hub, tmp_path, "m.gguf")
    with pytest.raises(Unavailable, match=r"the header of gone\.gguf"):
        inspect_headers("org/tiny", COMMIT, [RemoteFile("gone.gguf", 9, "")], endpoint=hub[0], cache_dir=tmp_path)
