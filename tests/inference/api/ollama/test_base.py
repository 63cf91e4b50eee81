"""What Ollama's endpoints share: the shape of errors."""

from __future__ import annotations

import json

import pytest

from inference.access.api_keys import api_key_create
from models_registry.aliases import alias_promote
from models_registry.models import Checkpoint
from tests.inference.api.ollama.test_views import MESSAGES, refused
from tests.inference.api.scripted_worker import Reply


def test_errors_have_ollama_s_shape(ollama, http, worker):
    from ollama import ResponseError

    with pytest.raises(ResponseError) as caught:
        ollama.chat("missing", MESSAGES)
    assert caught.value.status_code == 404
    assert "missing" in caught.value.error
    refused(http.post("/api/chat", json={"messages": MESSAGES}), 400, "model is required")
    refused(http.post("/api/chat", content=b"{", headers={"content-type": "application/json"}), 400, "JSON")
    refused(http.get("/api/chat"), 405)
    bad = [{"role": "user", "content": "Hi", "images": ["aa"]}]
    refused(http.post("/api/chat", json={"model": "tiny", "messages": bad}), 400, "messages.0.content.0: the image")
    refused(http.post("/api/chat", json={"model": "tiny", "messages": [{"role": "god"}]}), 400, "god")

    def broken(reply: Reply):
        from inference.errors import GenerationFailed

        yield reply.start()
        yield reply.delta("Hel")
        yield reply.error(GenerationFailed("the engine stumbled."))

    worker.script = broken
    text = http.post("/api/chat", json={"model": "tiny", "messages": MESSAGES}).text
    lines = [json.loads(item) for item in text.splitlines()]
    assert lines[0]["message"]["content"] == "Hel"
    assert lines[-1] == {"error": "the engine stumbled."}


def test_a_key_for_one_model_reaches_it_by_a_clients_name(http, worker):
    _, key = api_key_create(name="one", models=["tiny"])
    http.headers["Authorization"] = f"Bearer {key}"
    for name, status in (("tiny", 200), ("tiny:latest", 200), ("other:latest", 403), ("tiny:other", 403)):
        body = {"model": name, "messages": MESSAGES, "stream": False}
        assert http.post("/api/chat", json=body).status_code == status, name


@pytest.mark.parametrize("name", ["prod", "prod:latest"])
def test_a_key_for_an_alias_reaches_the_model_by_the_alias(http, worker, name):
    alias_promote(name="prod", checkpoint=Checkpoint.objects.get(served_model_name="tiny"))
    _, key = api_key_create(name="one", models=["prod"])
    http.headers["Authorization"] = f"Bearer {key}"
    body = {"model": name, "messages": MESSAGES, "stream": False}
    assert http.post("/api/chat", json=body).status_code == 200
    assert http.post("/api/generate", json={"model": name, "stream": False}).json()["done_reason"] == "load"
    body["model"] = "tiny"
    assert http.post("/api/chat", json=body).status_code == 403
