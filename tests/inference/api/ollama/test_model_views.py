"""Ollama's endpoints about models."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import async_to_sync
from django.test import RequestFactory

from inference.api.ollama.model_views import VersionView
from models_registry.models import Adapter, Checkpoint
from tests.inference.api.ollama.test_views import MESSAGES, refused
from tests.inference.api.openai.test_views import documented_answer
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.rows import TEMPLATE, make_adapter, make_checkpoint


def test_tags_ps_show_version(document, ollama, http, worker):
    (found,) = ollama.list().models
    assert (found.model, found.details.family, len(found.digest)) == ("tiny", "oxidizr", 64)
    wait_for(lambda: ollama.ps().models)
    (running,) = ollama.ps().models
    assert (running.model, running.context_length) == ("tiny", 4096)
    shown = ollama.show("tiny")
    assert shown.template == TEMPLATE
    assert shown.capabilities == ["completion", "embedding"]
    assert shown.modelinfo["oxidizr.context_length"] == 4096
    for path, method, body in (
        ("/api/tags", "get", None),
        ("/api/ps", "get", None),
        ("/api/version", "get", None),
        ("/api/show", "post", {"name": "tiny", "verbose": True}),
        ("/api/generate", "post", {"model": "tiny", "prompt": "a", "stream": False}),
        ("/api/chat", "post", {"model": "tiny", "messages": MESSAGES, "stream": False}),
    ):
        documented_answer(document, path, method, http.request(method, path, json=body))
    refused(http.post("/api/show", json={}), 400, "model is required")
    refused(http.post("/api/show", json={"model": "missing"}), 404)


@pytest.mark.parametrize("least", [(0, 6, 4), (0, 13, 4)], ids=["Copilot", "codex --oss"])
def test_clients_find_a_version_that_is_new_enough(least):
    response = async_to_sync(VersionView().get)(RequestFactory().get("/api/version"))
    version = json.loads(response.content)["version"]
    assert tuple(map(int, version.split("."))) >= least


def test_delete(ollama_as_admin, http_as_admin):
    make_checkpoint("old")
    assert {item.model for item in ollama_as_admin.list().models} == {"old", "tiny"}
    ollama_as_admin.delete("old:latest")
    assert {item.model for item in ollama_as_admin.list().models} == {"tiny"}
    refused(http_as_admin.request("DELETE", "/api/delete", json={"model": "old"}), 404)


def test_a_refused_deletion_unloads_nothing(http_as_admin, monkeypatch):
    lender = make_checkpoint("lender")
    borrower = make_checkpoint("borrower")
    borrower.overrides.create(fact="tokenizer_from", value="lender", source=lender)
    unloaded = []

    async def unload(checkpoint_id):
        unloaded.append(checkpoint_id)

    monkeypatch.setattr("inference.api.ollama.model_views.request_unload", unload)
    refused(http_as_admin.request("DELETE", "/api/delete", json={"model": "lender"}), 409, "borrower")
    assert unloaded == []


def test_deleting_an_adapter_leaves_its_base(ollama_as_admin, http_as_admin):
    base = make_checkpoint("base")
    for name in ("sql", "chat"):
        make_adapter(base, name)
    assert "base:sql" in {item.model for item in ollama_as_admin.list().models}
    ollama_as_admin.delete("base:sql")
    assert http_as_admin.delete("/v1/models/base:chat").json() == {
        "id": "base:chat",
        "object": "model",
        "deleted": True,
    }
    assert Checkpoint.objects.filter(pk=base.pk).exists()
    assert not Adapter.objects.exists()
    refused(http_as_admin.request("DELETE", "/api/delete", json={"model": "base:sql"}), 404)


def test_an_adapter_is_no_checkpoint_to_make_others_of(http_as_admin):
    make_adapter(make_checkpoint("base"), "sql")
    body = {"model": "new", "from": "base:sql", "system": "Be brief."}
    response = http_as_admin.post("/api/create", json=body)
    assert (response.status_code, "is a LoRA adapter" in response.text) == (400, True), response.text
    assert not Checkpoint.objects.filter(served_model_name="new").exists()
