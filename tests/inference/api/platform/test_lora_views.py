"""vLLM's routes for adapters over HTTP: bodies and responses, who may, and what is refused."""

from __future__ import annotations

import pytest

from inference.serving import lora_adapters
from inference.serving.served_models import served_model_read
from models_registry import live
from models_registry.models import Adapter
from tests.inference.api.test_base import is_error
from tests.inference.rows import make_adapter

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def made(worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers whatever path there is; the checks have tests of their own."""

    def register(*, checkpoint, path, name):
        row = make_adapter(checkpoint, name)
        Adapter.objects.filter(pk=row.pk).update(path=path)
        return row

    monkeypatch.setattr(lora_adapters, "adapter_register", register)
    monkeypatch.setattr(live, "load_adapter", lambda checkpoint_id, adapter_id: None)


def test_an_adapter_is_loaded_and_unloaded_as_at_vllm(http_as_admin, document, made) -> None:
    body = {"lora_name": "tiny:sql", "lora_path": "/srv/sql"}
    answer = http_as_admin.post(LOAD, json=body)
    assert answer.text == "Success: LoRA adapter 'tiny:sql' added successfully."
    assert answer.headers["content-type"].startswith("text/plain")
    assert served_model_read("tiny:sql").adapter
    answer = http_as_admin.post(UNLOAD, json={"lora_name": "tiny:sql"})
    assert answer.text == "Success: LoRA adapter 'tiny:sql' removed successfully."
    assert not Adapter.objects.exists()
    for path in (LOAD, UNLOAD):
        assert list(document["paths"][path]["post"]["responses"]["200"]["content"]) == ["text/plain"]


def test_refusals_have_openais_form(http_as_admin, made) -> None:
    for body, param in (
        ({}, "lora_name"),
        ({"lora_name": "a"}, "lora_path"),
        ({"lora_name": "tiny:a", "lora_path": "/a", "load_inplace": True}, "load_inplace"),
    ):
        assert is_error(http_as_admin.post(LOAD, json=body), 400)["param"] == param
    assert is_error(http_as_admin.post(UNLOAD, json={"lora_name": "nobody"}), 404)["param"] == "lora_name"
    assert is_error(http_as_admin.post(LOAD, json={"lora_name": "none:a", "lora_path": "/a"}), 404)
    is_error(http_as_admin.post(LOAD, content=b"{}"), 415)
