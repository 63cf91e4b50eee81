"""/api/blobs and /api/create with Ollama's own client and raw requests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import ollama as ollama_package
import pytest

from inference.demo.paths import PREBUILT_DIRECTORY
from models_registry import received_blobs, storage
from models_registry.models import Checkpoint, Upload
from tests.inference.api.ollama.test_views import refused

JINJA = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


@pytest.fixture
def blobs(ollama_as_admin, data_dir) -> dict[str, str]:
    return {path.name: ollama_as_admin.create_blob(path) for path in sorted(PREBUILT_DIRECTORY.iterdir())}


def left_behind() -> list[Path]:
    return [*storage.uploads_dir().iterdir(), *storage.blobs_dir().rglob("*.part")]


def test_a_model_is_made_of_blobs(blobs, ollama_as_admin, http_as_admin):
    for digest in blobs.values():
        assert http_as_admin.head(f"/api/blobs/{digest}").status_code == 200
    lines = list(ollama_as_admin.create("made:latest", files=blobs, stream=True))
    assert [line.status for line in lines] == ["inspecting", "registered as made", "success"]
    row = Checkpoint.objects.get(served_model_name="made")
    assert (row.source, row.settings, row.overrides.count()) == ("upload", {}, 0)
    assert {stamp["name"] for stamp in row.file_stamps} == set(blobs)
    assert not left_behind()
    assert "made" in {model.model for model in ollama_as_admin.list().models}
    refused(http_as_admin.post("/api/create", json={"model": "made", "files": blobs}), 409, "taken by another")


def test_template_system_parameters_and_quantisation(blobs, ollama_as_admin, http_as_admin, system_of):
    made = {"files": blobs, "template": JINJA, "system": 'Say "yes",\nünd {{ no }}.', "quantize": "q4_K_M"}
    parameters = {"temperature": 0.2, "stop": ["END"], "num_predict": 7}
    assert ollama_as_admin.create("made", **made, parameters=parameters).status == "success"
    row = Checkpoint.objects.get(served_model_name="made")
    assert (row.settings["quant"], row.settings["parameters"]) == ("int4", parameters)
    shown = ollama_as_admin.show("made")
    assert "num_predict 7" in shown.parameters and JINJA in shown.template
    messages = [{"role": "user", "content": "Hi"}]
    assert system_of("made", messages) == 'system: Say "yes",\nünd {{ no }}.\nuser: Hi\nassistant: '
    own = [{"role": "system", "content": "Own."}, *messages]
    assert system_of("made", own) == "system: Own.\nuser: Hi\nassistant: "


def test_a_model_is_made_of_another(blobs, ollama_as_admin, http_as_admin, system_of):
    ollama_as_admin.create("made", files=blobs)
    assert ollama_as_admin.create("child", from_="made", system="Be brief.").status == "success"
    prompt = system_of("child", [{"role": "user", "content": "Hi"}])
    assert "Be brief." in prompt
    ollama_as_admin.delete("made")
    row = Checkpoint.objects.get(served_model_name="child")
    assert all((Path(row.directory) / stamp["name"]).is_file() for stamp in row.file_stamps)
    refused(http_as_admin.post("/api/create", json={"model": "x", "from": "nobody"}), 404, "does not exist")
    refused(http_as_admin.post("/api/create", json={"model": "child", "from": "child"}), 400, "is taken")


@pytest.fixture
def system_of(http_as_admin):
    def render(name: str, messages: list[dict[str, str]]) -> str:
        response = http_as_admin.post("/apply-template", json={"model": name, "messages": messages})
        assert response.status_code == 200, response.text
        return response.json()["prompt"]

    return render


@pytest.mark.parametrize(
    ("body", "status", "match"),
    [
        ({}, 400, "either files"),
        ({"files": {"a.gguf": "sha256:1"}}, 400, "64 lower-case"),
        ({"files": {"a.gguf": 5}}, 400, "no digest for 'a.gguf'"),
        ({"files": {"a.gguf": "sha256:" + "0" * 64}}, 404, "send it to /api/blobs first"),
        ({"from": "tiny", "template": "{{ .Prompt }}"}, 400, "one of Go's"),
        ({"from": "tiny", "quantize": "q2_K"}, 400, "known are q8_0"),
        ({"from": "tiny", "adapters": {"a": "b"}}, 400, "adapters"),
        ({"from": "tiny", "license": "MIT"}, 400, "license"),
        ({"from": "tiny", "parameters": {"colour": 1}}, 400, "colour"),
        ({"from": "tiny", "parameters": {"temperature": "hot"}}, 400, "temperature"),
        ({"from": "tiny", "template": "{% for"}, 400, "template"),
    ],
)
def test_what_cannot_be_made_is_refused_and_leaves_nothing(body, status, match, http_as_admin, data_dir):
    known = Checkpoint.objects.count()
    refused(http_as_admin.post("/api/create", json={"model": "new", "stream": False, **body}), status, match)
    assert Checkpoint.objects.count() == known
    assert not left_behind()
    assert not Upload.objects.filter(state__in=Upload.OPEN).exists()


def test_broken_files_are_refused_and_leave_nothing(http_as_admin, ollama_as_admin, data_dir, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + b"x" * 100)
    digest = ollama_as_admin.create_blob(path)
    with pytest.raises(ollama_package.ResponseError):
        ollama_as_admin.create("broken", files={"model.gguf": digest})
    response = http_as_admin.post("/api/create", json={"model": "broken", "files": {"model.gguf": digest}})
    assert response.status_code == 200 and "error" in response.text.splitlines()[-1]
    refused(http_as_admin.post("/api/create", json={"model": "b", "files": {"run.py": digest}}), 422, "run.py")
    refused(http_as_admin.post("/api/create", json={"model": "b", "files": {"../m.gguf": digest}}), 400, "not taken")
    assert not Checkpoint.objects.filter(source="upload").exists()
    assert not left_behind()


def test_a_blob_with_another_digest_is_refused(http_as_admin, data_dir, settings, monkeypatch):
    content = b"some bytes"
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert http_as_admin.head(f"/api/blobs/{digest}").status_code == 404
    wrong = "sha256:" + "a" * 64
    refused(http_as_admin.post(f"/api/blobs/{wrong}", content=content), 422, "has the SHA-256")
    refused(http_as_admin.post(f"/api/blobs/{digest}", content=b""), 400, "empty")
    refused(http_as_admin.post("/api/blobs/md5:1", content=content), 400, "sha256:")
    settings.BLAZR_MAX_UPLOAD_BYTES = 5
    refused(http_as_admin.post(f"/api/blobs/{digest}", content=content), 413, "BLAZR_MAX_UPLOAD_BYTES")
    settings.BLAZR_MAX_UPLOAD_BYTES = 1 << 30
    assert not left_behind()
    assert http_as_admin.post(f"/api/blobs/{digest}", content=content).status_code == 201
    assert http_as_admin.post(f"/api/blobs/{digest}", content=content).status_code == 201
    monkeypatch.setattr(received_blobs, "KEPT_S", -1.0)
    received_blobs.received_sweep()
    storage.prune_blobs()
    assert http_as_admin.head(f"/api/blobs/{digest}").status_code == 404
