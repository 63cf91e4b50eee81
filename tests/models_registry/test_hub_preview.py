"""Search and preview on a hub on loopback; nothing but config.json is fetched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.errors import InvalidRequest, NotFound, Unavailable
from models_registry.hub_preview import hub_preview, hub_search
from tests.models_registry.tiny_hub import COMMIT, Hub, tiny_hub


@pytest.fixture
def hub(hybrid: Path) -> Iterator[tuple[str, type[Hub]]]:
    with tiny_hub(hybrid) as found:
        yield found


def test_a_search_lists_what_the_hub_finds(hub) -> None:
    first, second = hub_search("tiny", endpoint=hub[0])
    assert (first.repo_id, first.downloads, first.updated, first.can_be_pulled) == (
        "org/tiny",
        1234,
        "2026-01-02",
        True,
    )
    assert (second.repo_id, second.is_gated, second.can_be_pulled) == ("org/tiny-pickle", True, False)
    assert len(hub_search("tiny", 1, endpoint=hub[0])) == 1
    assert hub_search("nothing", endpoint=hub[0]) == []
    for text, limit in (("", 5), ("a", 0), ("a", 101)):
        with pytest.raises(InvalidRequest):
            hub_search(text, limit, endpoint=hub[0])
    with pytest.raises(Unavailable, match="can't be searched"):
        hub_search("tiny", endpoint="http://127.0.0.1:9")


def test_a_preview_fetches_only_the_config(hub, hybrid, tmp_path) -> None:
    endpoint, handler = hub
    found = hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path)
    assert handler.asked == ["config.json"]
    assert [name for name, _ in found.files] == ["config.json", "model.safetensors"]
    assert found.weights_bytes == (hybrid / "model.safetensors").stat().st_size
    assert found.total_bytes == found.weights_bytes + (hybrid / "config.json").stat().st_size
    assert (found.commit, found.omitted_bytes) == (COMMIT, len(b"no") * 4)
    assert (found.licence, found.is_gated, found.cached_bytes) == ("apache-2.0", False, 0)
    assert found.free_disk_bytes > 0
    # What an earlier pull left counts.
    handler.gate.clear()
    blobs = tmp_path / "models--org--tiny" / "blobs"
    digest = hashlib.sha256(handler.files["model.safetensors"]).hexdigest()
    (blobs / f"{digest}.blazr-part").write_bytes(b"12345")
    assert hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path).cached_bytes == 5
    (blobs / digest).write_bytes(handler.files["model.safetensors"])
    assert hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path).cached_bytes == found.weights_bytes


def test_what_a_config_says(hub, tmp_path) -> None:
    endpoint, handler = hub
    config = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 64, "torch_dtype": "bfloat16"}
    handler.files["config.json"] = json.dumps(config).encode()
    found = hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "a")
    assert (found.family, found.problem, found.sizes["hidden_size"]) == ("llama", "", 64)
    assert found.quantised_bytes["int4"] < found.quantised_bytes["int8"] < found.weights_bytes
    handler.files["config.json"] = json.dumps({"model_type": "unheard_of"}).encode()
    found = hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "b")
    assert found.family == "" and "'unheard_of' is not supported" in found.problem
    handler.files["config.json"] = b"[" * 100_000
    assert hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "c").model_type == ""
    del handler.files["model.safetensors"]
    assert "no .safetensors" in hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "d").problem


def test_what_is_not_there_is_said(hub, tmp_path) -> None:
    with pytest.raises(NotFound):
        hub_preview("org/none", endpoint=hub[0], cache_dir=tmp_path)
    with pytest.raises(InvalidRequest):
        hub_preview("a b", endpoint=hub[0], cache_dir=tmp_path)
    with pytest.raises(Unavailable):
        hub_preview("org/tiny", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)
