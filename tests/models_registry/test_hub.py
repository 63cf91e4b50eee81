"""Pulling from a hub: a small one on loopback, and none at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.errors import (
    CheckpointError,
    InvalidRequest,
    NotFound,
    RequestTooLarge,
    Unavailable,
    UnsupportedArchitecture,
)
from models_registry.hub import PullProgress, files_to_serve, hub_pull
from tests.models_registry import tiny_hub as tiny_hub_module
from tests.models_registry.gguf_content import llama_gguf, split_llama
from tests.models_registry.tiny_hub import COMMIT, Hub, sibling, tiny_hub


@pytest.fixture
def hub(hybrid: Path) -> Iterator[tuple[str, type[Hub]]]:
    with tiny_hub(hybrid) as found:
        yield found


def test_a_pull_fetches_what_serving_needs_and_registers(hub, hybrid: Path, tmp_path: Path, db) -> None:
    endpoint, handler = hub
    told: list[PullProgress] = []
    place = hub_pull("org/tiny", None, told.append, endpoint=endpoint, cache_dir=tmp_path / "cache")
    assert sorted(handler.asked) == ["config.json", "model.safetensors"]
    assert (place / "model.safetensors").read_bytes() == (hybrid / "model.safetensors").read_bytes()
    for name in ("config.json", "model.safetensors"):
        counts = [item.done_bytes for item in told if item.file == name]
        assert counts == sorted(counts) and counts[-1] == (hybrid / name).stat().st_size
    assert told[-1] == PullProgress("")
    weights = [item for item in told if item.file == "model.safetensors"]
    assert weights[-1].done_bytes == weights[-1].total_bytes == len(handler.files["model.safetensors"])
    assert weights[-1].sha256 == hashlib.sha256(handler.files["model.safetensors"]).hexdigest()
    from models_registry.services import checkpoint_files_verify, checkpoint_register

    row = checkpoint_register(path=place, source="hub", origin="org/tiny")
    assert (row.served_model_name, row.num_layers, row.origin) == ("tiny", 3, "org/tiny")
    checkpoint_files_verify(row)
    hub_pull("org/tiny", None, endpoint=endpoint, cache_dir=tmp_path / "cache")
    assert len(handler.asked) == 2


def test_offline_the_cache_will_do(hub, tmp_path: Path) -> None:
    endpoint, _ = hub
    cache = tmp_path / "cache"
    place = hub_pull("org/tiny", endpoint=endpoint, cache_dir=cache)
    for revision in (None, "main", COMMIT):
        assert hub_pull("org/tiny", revision, endpoint="http://127.0.0.1:9", cache_dir=cache) == place


def test_offline_without_a_cache_is_one_clear_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="hub can't be reached") as caught:
        hub_pull("org/tiny", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)
    assert "\n" not in caught.value.message


def test_what_the_hub_lacks(hub, tmp_path: Path) -> None:
    endpoint, handler = hub
    with pytest.raises(NotFound, match="no model org/other"):
        hub_pull("org/other", endpoint=endpoint, cache_dir=tmp_path)
    with pytest.raises(NotFound, match="no revision"):
        hub_pull("org/tiny", "nowhere", endpoint=endpoint, cache_dir=tmp_path)
    with pytest.raises(RequestTooLarge, match=r"the limit is 1\.0 KiB"):
        hub_pull("org/tiny", endpoint=endpoint, cache_dir=tmp_path, max_bytes=1024)
    del handler.files["model.safetensors"]
    with pytest.raises(CheckpointError, match=r"no \.safetensors weights at its top level and no \.gguf files"):
        hub_pull("org/tiny", endpoint=endpoint, cache_dir=tmp_path)


def test_what_the_hub_states_is_not_trusted(hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, _ = hub

    def lie(**values: object) -> None:
        monkeypatch.setattr(tiny_hub_module, "sibling", lambda name, data: {**sibling(name, data), **values})

    outside = tmp_path / "outside"
    outside.mkdir()
    for digest in ("../../../outside/a", str(outside / "b"), "0" * 63, "A" * 64):
        lie(lfs={"sha256": digest, "size": 5, "pointerSize": 130})
        with pytest.raises(CheckpointError, match="which is none"):
            hub_pull("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "cache")
    assert not list(outside.iterdir())
    lie(size=100)
    with pytest.raises(CheckpointError, match="has more than the 100 B that the hub states"):
        hub_pull("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*.blazr-part") if path.stat().st_size > 100]
    for unstated in (0, None):  # or it would have no limit at all
        lie(size=unstated)
        with pytest.raises(CheckpointError, match="has more than the 0 B that the hub states"):
            hub_pull("org/tiny", endpoint=endpoint, cache_dir=tmp_path / f"cache-{unstated}")
        assert not any(path.stat().st_size for path in (tmp_path / f"cache-{unstated}").rglob("*.blazr-part"))


@pytest.mark.parametrize("text", ["../x", "a/b/c", "-a/b"])
def test_other_texts_are_not_hub_ids(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="ORG/NAME"):
        hub_pull(text, cache_dir=tmp_path)


def test_a_second_copy_of_the_weights_is_left_out() -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors"]
    assert files_to_serve([*names, "model.safetensors.index.json", "tokenizer.json", "a/b.json"]) == [
        *names[:2], "model.safetensors.index.json", "tokenizer.json",
    ]  # fmt: skip
    assert files_to_serve(["consolidated.safetensors"]) == ["consolidated.safetensors"]


@pytest.fixture
def gguf_hub(hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, type[Hub]]:
    """A repository with GGUF files only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    hub[1].files = {
        "Tiny-Q4_K_M.gguf": llama_gguf(),
        "Tiny-F16.gguf": llama_gguf(seed=2),
        "Q8_0/Tiny-Q8_0-00001-of-00002.gguf": split_llama(num_parts=2)[0],
        "Q8_0/Tiny-Q8_0-00002-of-00002.gguf": split_llama(num_parts=2)[1],
        "mmproj-F16.gguf": b"no",
        "README.md": b"no",
    }
    return hub


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("org/tiny", ["Tiny-Q4_K_M.gguf"]),
        ("org/tiny:f16", ["Tiny-F16.gguf"]),
        ("org/tiny:Tiny-F16.gguf", ["Tiny-F16.gguf"]),
        ("org/tiny:Q8_0", ["Q8_0/Tiny-Q8_0-00001-of-00002.gguf", "Q8_0/Tiny-Q8_0-00002-of-00002.gguf"]),
    ],
)
def test_a_gguf_model_is_pulled_by_tag_or_name_and_registers(gguf_hub, tmp_path: Path, db, name, files) -> None:
    endpoint, handler = gguf_hub
    sentences: list[str] = []
    cache = tmp_path / "cache"
    place = hub_pull(name, endpoint=endpoint, cache_dir=cache, on_choice=sentences.append)
    assert handler.asked == files
    assert place.read_bytes() == handler.files[files[0]]
    assert bool(sentences) == (name == "org/tiny")
    from models_registry.services import checkpoint_register

    row = checkpoint_register(path=place, source="hub", origin=name)
    assert (row.model_type, row.num_layers) == ("llama", 1)
    assert hub_pull(name, endpoint="http://127.0.0.1:9", cache_dir=cache) == place  # offline the cache will do
    hub_pull(name, endpoint=endpoint, cache_dir=cache)
    assert handler.asked == files


def test_safetensors_come_first_unless_a_tag_is_given(hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, handler = hub
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    handler.files["Tiny-Q4_K_M.gguf"] = llama_gguf()
    assert hub_pull("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "a").is_dir()
    assert sorted(handler.asked) == ["config.json", "model.safetensors"]
    assert hub_pull("org/tiny:Q4_K_M", endpoint=endpoint, cache_dir=tmp_path / "b").name == "Tiny-Q4_K_M.gguf"


def test_a_gguf_model_that_is_not_read_is_refused_before_it_is_fetched(gguf_hub, tmp_path: Path) -> None:
    endpoint, handler = gguf_hub
    handler.files["Tiny-Q4_K_M.gguf"] = llama_gguf(30_000, architecture="unheard-of")
    with pytest.raises(UnsupportedArchitecture, match="'unheard-of', which is not read"):
        hub_pull("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "cache")
    assert handler.asked == []
    with pytest.raises(NotFound, match=r"the tag Q6_K, which it doesn't have; there are F16, Q8_0, Q4_K_M"):
        hub_pull("org/tiny:Q6_K", endpoint=endpoint, cache_dir=tmp_path / "cache")
    with pytest.raises(RequestTooLarge, match="the limit is"):
        hub_pull("org/tiny:F16", endpoint=endpoint, cache_dir=tmp_path / "cache", max_bytes=1024)
    del handler.files["Q8_0/Tiny-Q8_0-00001-of-00002.gguf"]
    with pytest.raises(CheckpointError, match=r"lacks 1 of the parts .*-00001-of-00002\.gguf"):
        hub_pull("org/tiny:Q8_0", endpoint=endpoint, cache_dir=tmp_path / "cache")
    assert handler.asked == []
