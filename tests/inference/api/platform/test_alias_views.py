"""Aliases over HTTP: promote, roll back, requests by alias, Ollama's copy."""

from __future__ import annotations

import httpx
import pytest

from inference.errors import Conflict
from models_registry import aliases, services
from models_registry.models import Adapter, AliasRevision, ModelAlias
from tests.inference.api.openai.test_views import documented_answer
from tests.inference.api.test_base import is_error
from tests.inference.rows import make_checkpoint


@pytest.fixture
def http(live_url, worker):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


@pytest.fixture
def second(worker):
    row = make_checkpoint("second")
    worker.checkpoint_ids.add(str(row.pk))
    return row


def answered_by(http: httpx.Client, name: str) -> str:
    response = http.post("/v1/completions", json={"model": name, "prompt": "a"})
    assert response.status_code == 200, response.text
    return response.json()["model"]


def test_promote_roll_back_delete(document, http_as_admin, second):
    path = "/v1/models/{model_id}"
    for name in ("tiny", "second"):
        response = http_as_admin.post("/v1/models/prod/promote", json={"model": name})
        documented_answer(document, f"{path}/promote", "post", response)
        assert answered_by(http_as_admin, "prod") == name
    assert [item["model"] for item in response.json()["revisions"]] == ["second", "tiny"]
    assert (answered_by(http_as_admin, "prod@1"), answered_by(http_as_admin, "prod@2")) == ("tiny", "second")
    response = http_as_admin.post("/v1/models/prod/rollback", json={})
    documented_answer(document, f"{path}/rollback", "post", response)
    assert response.json()["revision"] == 1
    assert answered_by(http_as_admin, "prod") == "tiny"
    assert http_as_admin.post("/v1/models/prod/rollback", json={"revision": 2}).json()["revision"] == 2
    response = http_as_admin.get("/v1/models/prod/revisions")
    documented_answer(document, f"{path}/revisions", "get", response)
    assert [item["is_current"] for item in response.json()["revisions"]] == [True, False]
    listed = http_as_admin.get("/v1/models")
    documented_answer(document, "/v1/models", "get", listed)
    shown = next(item for item in listed.json()["data"] if item["id"] == "prod")
    assert (shown["root"], shown["revision"]) == ("second", 2)
    assert http_as_admin.get("/v1/models/prod").json() == shown
    response = http_as_admin.delete("/v1/models/prod")
    documented_answer(document, path, "delete", response)
    is_error(http_as_admin.post("/v1/completions", json={"model": "prod", "prompt": "a"}), 404)
    assert not AliasRevision.objects.exists()


def test_an_alias_may_mean_an_adapter(document, http_as_admin, checkpoint):
    row = Adapter.objects.create(
        base=checkpoint, name="sql", path="/nowhere", digest="d", rank=4, num_values=1, size_bytes=1
    )
    response = http_as_admin.post("/v1/models/prod/promote", json={"model": "tiny:sql"})
    documented_answer(document, "/v1/models/{model_id}/promote", "post", response)
    assert [item["model"] for item in response.json()["revisions"]] == ["tiny:sql"]
    is_error(http_as_admin.post("/v1/models/prod/promote", json={"model": "tiny:sql"}), 409)
    listed = http_as_admin.get("/v1/models")
    documented_answer(document, "/v1/models", "get", listed)
    shown = next(item for item in listed.json()["data"] if item["id"] == "prod")
    assert (shown["root"], shown["parent"]) == ("tiny:sql", "tiny")
    for _ in range(2):  # again is no error
        assert http_as_admin.post("/api/copy", json={"source": "prod", "destination": "mine"}).status_code == 200
    assert {item["name"] for item in http_as_admin.get("/api/tags").json()["models"]} >= {"prod", "mine", "tiny:sql"}
    row.delete()
    listed = {item["id"] for item in http_as_admin.get("/v1/models").json()["data"]}
    assert listed.isdisjoint({"prod", "mine", "tiny:sql"})
    error = http_as_admin.post("/v1/completions", json={"model": "prod", "prompt": "a"})
    assert error.status_code == 404
    assert "'prod' means the adapter 'tiny:sql', which was removed" in error.json()["error"]["message"]
    assert http_as_admin.post("/v1/models/prod/promote", json={"model": "tiny"}).json()["revision"] == 2
    is_error(http_as_admin.post("/v1/models/prod/rollback", json={}), 409)


def test_a_change_reaches_the_cache_of_another_process(http, second, monkeypatch):
    from inference.serving import served_models as selectors

    aliases.alias_promote(name="prod", checkpoint=second)
    assert answered_by(http, "prod") == "second"
    monkeypatch.setattr(selectors, "CACHE_S", 0.0)
    assert answered_by(http, "prod") == "second"
    services.checkpoint_settings_update(checkpoint=second, values={"pooling": "last"})
    assert answered_by(http, "prod") == "second"
    from models_registry.models import Checkpoint

    aliases.alias_promote(name="prod", checkpoint=Checkpoint.objects.get(served_model_name="tiny"))
    assert answered_by(http, "prod") == "tiny"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("tiny/promote", {"model": "second"}, 409),
        ("a b/promote", {"model": "tiny"}, 400),
        ("prod@3/promote", {"model": "tiny"}, 400),
        ("prod/promote", {"model": "missing"}, 404),
        ("prod/promote", {}, 400),
        ("prod/promote", {"model": "tiny"}, 409),
        ("prod/rollback", {}, 404),
        ("prod/rollback", {"revision": 7}, 404),
        ("prod/rollback", {"revision": 1}, 409),
        ("prod/rollback", {"revision": 0}, 400),
        ("none/rollback", {}, 404),
    ],
)
def test_changes_that_are_refused(http_as_admin, checkpoint, second, path, body, status):
    aliases.alias_promote(name="prod", checkpoint=checkpoint)
    is_error(http_as_admin.post(f"/v1/models/{path}", json=body), status)
    assert ModelAlias.objects.get().current.number == 1
    is_error(http_as_admin.delete("/v1/models/tiny"), 409)
    is_error(http_as_admin.delete("/v1/models/none"), 404)


def test_names_are_one_namespace_and_history_outlives_checkpoints(http_as_admin, checkpoint, second):
    aliases.alias_promote(name="prod", checkpoint=second, author_name="Ann")
    with pytest.raises(Conflict, match="an alias"):
        services.checkpoint_rename(checkpoint=checkpoint, served_model_name="prod")
    checkpoint.refresh_from_db()
    assert services.free_name("prod") == "prod-2"
    with pytest.raises(Conflict, match="'prod' means"):
        services.checkpoint_delete(checkpoint=second)
    aliases.alias_promote(name="prod", checkpoint=checkpoint)
    services.checkpoint_delete(checkpoint=second)
    revisions = http_as_admin.get("/v1/models/prod/revisions").json()["revisions"]
    assert [(item["model"], item["is_available"], item["author"]) for item in revisions] == [
        ("tiny", True, ""),
        ("second", False, "Ann"),
    ]
    is_error(http_as_admin.post("/v1/models/prod/rollback", json={}), 409)


def test_ollama_copies_by_alias(live_url, http_as_admin, admin_headers):
    import ollama

    client = ollama.Client(host=live_url, headers=admin_headers)
    client.copy("tiny:latest", "mine:latest")
    client.copy("tiny", "mine")  # again is no error
    assert {item.model for item in client.list().models} == {"tiny", "mine"}
    assert client.generate("mine", "a").response == "Hello, world"
    client.delete("mine")
    assert {item.model for item in client.list().models} == {"tiny"}
    assert http_as_admin.post("/api/copy", json={"source": "tiny", "destination": "a b"}).status_code == 400
    assert http_as_admin.post("/api/copy", json={"source": "none", "destination": "x"}).status_code == 404
    client._client.close()


def test_a_key_for_an_alias_needs_no_more(http, checkpoint, settings):
    from inference.access.api_keys import api_key_create

    aliases.alias_promote(name="prod", checkpoint=checkpoint)
    settings.BLAZR_API_KEY_REQUIRED = True
    _, key = api_key_create(name="own", models=("prod",))
    headers = {"Authorization": f"Bearer {key}"}
    body = {"prompt": "a"}
    assert http.post("/v1/completions", json={"model": "prod", **body}, headers=headers).status_code == 200
    is_error(http.post("/v1/completions", json={"model": "tiny", **body}, headers=headers), 403)
    is_error(http.post("/v1/models/prod/promote", json={"model": "tiny"}, headers=headers), 403)
    assert [item["id"] for item in http.get("/v1/models", headers=headers).json()["data"]] == ["prod"]
