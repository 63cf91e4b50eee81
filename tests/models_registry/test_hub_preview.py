"""Search and preview on a hub on loopback; nothing but config.json is fetched."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.errors import InvalidRequest, NotFound, Unavailable
from models_registry.hub_preview import hub_preview, hub_search
from tests.models_registry.gguf_content import llama_gguf, split_llama
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


def test_a_hub_that_is_away_is_asked_once(hub, monkeypatch) -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match="can't be searched"):
        hub_search("tiny", endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(hub[1], "do_GET", lambda self: self.send_error(503))
    with pytest.raises(Unavailable, match="answered 503"):
        hub_search("tiny", endpoint=hub[0])
    assert time.monotonic() - began < 5


def test_a_hub_that_never_answers_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr("models_registry.hub_preview.LOOK_UP_S", 0.3)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match="org/tiny can't be looked up"):
            hub_preview("org/tiny", endpoint=address)
    assert time.monotonic() - began < 10


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
    assert (found.family, found.refusal, found.sizes["hidden_size"]) == ("llama", "", 64)
    assert found.quantised_bytes["int4"] < found.quantised_bytes["int8"] < found.weights_bytes
    handler.files["config.json"] = json.dumps({"model_type": "unheard_of"}).encode()
    found = hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "b")
    assert found.family == "" and "'unheard_of' is not supported" in found.refusal
    handler.files["config.json"] = b"[" * 100_000
    assert hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "c").model_type == ""
    del handler.files["model.safetensors"]
    assert "no .gguf files" in hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path / "d").refusal


def test_what_is_not_there_is_said(hub, tmp_path) -> None:
    with pytest.raises(NotFound):
        hub_preview("org/none", endpoint=hub[0], cache_dir=tmp_path)
    with pytest.raises(InvalidRequest):
        hub_preview("a b", endpoint=hub[0], cache_dir=tmp_path)
    with pytest.raises(Unavailable):
        hub_preview("org/tiny", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)


def test_gguf_files_are_listed_and_the_chosen_one_is_read_by_its_header(hub, tmp_path, monkeypatch) -> None:
    endpoint, handler = hub
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    first, second = split_llama(num_parts=2)
    handler.files = {
        "T-Q4_K_M.gguf": llama_gguf(),
        "T-BF16-00001-of-00002.gguf": first,
        "T-BF16-00002-of-00002.gguf": second,
        "T-Q2_K.gguf": llama_gguf(architecture="unheard-of"),
        "mmproj-T.gguf": b"no",
    }
    found = hub_preview("org/tiny", endpoint=endpoint, cache_dir=tmp_path)
    assert handler.asked == [] and {end for _, end in handler.ranges} == {len(handler.files["T-Q4_K_M.gguf"])}
    assert (found.format, found.model_type, found.family, found.refusal) == ("GGUF", "llama", "llama", "")
    assert found.files == (("T-Q4_K_M.gguf", len(handler.files["T-Q4_K_M.gguf"])),)
    assert found.weights_bytes == found.total_bytes and found.sizes["max_position_embeddings"] == 128
    assert found.sizes["quantisation"] == "F32" and found.ignored_files == ("mmproj-T.gguf",)
    assert {(option.reference, option.is_chosen) for option in found.options} == {
        ("org/tiny:Q2_K", False), ("org/tiny:Q4_K_M", True), ("org/tiny:BF16", False),
    }  # fmt: skip
    assert "T-Q4_K_M.gguf is taken" in found.choice_message
    parts = hub_preview("org/tiny:bf16", endpoint=endpoint, cache_dir=tmp_path)
    assert [name for name, _ in parts.files] == ["T-BF16-00001-of-00002.gguf", "T-BF16-00002-of-00002.gguf"]
    assert (parts.choice_message, parts.refusal) == ("", "")
    refused = hub_preview("org/tiny:Q2_K", endpoint=endpoint, cache_dir=tmp_path)
    assert "'unheard-of', which is not read" in refused.refusal and refused.family == ""
    with pytest.raises(NotFound, match="the tag Q6_K"):
        hub_preview("org/tiny:Q6_K", endpoint=endpoint, cache_dir=tmp_path)
    del handler.files["T-BF16-00002-of-00002.gguf"]
    assert "lacks 1 of the parts" in hub_preview("org/tiny:BF16", endpoint=endpoint, cache_dir=tmp_path).refusal
