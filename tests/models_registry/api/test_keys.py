"""API keys at uploads, through the whole site."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from inference.access.api_keys import api_key_create, api_key_revoke
from models_registry.models import Adapter, Upload
from tests.inference.rows import make_adapter, make_checkpoint
from tests.models_registry.api.test_views import error_of

BODY = {"label": "tiny", "files": [{"name": "model.safetensors", "size_bytes": 64}]}


def send(key: str | None, method: str = "POST", path: str = "/registry/uploads", body: object = None):
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = body or (BODY if method == "POST" else None)
    return Client(enforce_csrf_checks=True).generic(
        method, path, b"" if body is None else json.dumps(body), "application/json", headers=headers
    )


@pytest.mark.django_db(transaction=True)
def test_an_admins_key_uploads_without_a_csrf_token(data_dir):
    key = api_key_create(name="boss", scopes=["admin"])[1]
    created = send(key)
    assert created.status_code == 201, created.content
    row = Upload.objects.get()
    assert row.owner is None
    assert send(key, "GET", f"/registry/uploads/{row.pk}").json()["state"] == "receiving"
    assert send(key, "DELETE", f"/registry/uploads/{row.pk}").json()["state"] == "cancelled"
    assert send(key, "GET", "/registry/overview").status_code == 401  # accounts only


@pytest.mark.django_db(transaction=True)
def test_other_callers_learn_what_they_need(data_dir):
    plain = send(api_key_create(name="plain")[1])
    assert (plain.status_code, "needs the scope admin" in error_of(plain)["message"]) == (403, True)
    nobody = send(None)
    assert (nobody.status_code, "an API key with the scope admin" in error_of(nobody)["message"]) == (401, True)
    row, key = api_key_create(name="gone", scopes=["admin"])
    api_key_revoke(prefix=row.prefix)
    assert send(key).status_code == 401
    assert not Upload.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_key_for_some_models_sees_and_changes_no_others(data_dir):
    mine, other = make_checkpoint("mine"), make_checkpoint("other")
    kept, gone = make_adapter(other, "sql"), make_adapter(mine, "sql")
    key = api_key_create(name="part", scopes=["admin"], models=["mine"])[1]
    listed = send(key, "GET", "/registry/checkpoints").json()
    assert [row["served_model_name"] for row in listed] == ["mine"]
    orders = [("POST", f"/{kept.pk}/{word}") for word in ("load", "unload")]
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", f"/{kept.pk}"), *orders):
        refused = send(key, method, f"/registry/checkpoints/{other.pk}/adapters{path}")
        assert refused.status_code == 403, (method, refused.content)
        assert "may not use the model" in error_of(refused)["message"]
    assert send(key, "DELETE", f"/registry/checkpoints/{mine.pk}/adapters/{gone.pk}").status_code == 204
    assert list(Adapter.objects.all()) == [kept]


@pytest.mark.django_db(transaction=True)
def test_a_key_for_some_models_uploads_no_others(data_dir):
    boss = api_key_create(name="boss", scopes=["admin"])[1]
    key = api_key_create(name="part", scopes=["admin"], models=["mine"])[1]
    other = send(boss).json()["id"]
    mine = send(key, body={**BODY, "served_model_name": "mine"}).json()["id"]
    path = f"/registry/uploads/{other}"
    for method, address, body in (
        ("POST", "/registry/uploads", None),  # its label names it
        ("POST", "/registry/uploads", {**BODY, "served_model_name": "other"}),
        ("GET", path, None),
        ("PUT", f"{path}/files/0?offset=0", [1]),
        ("POST", f"{path}/finish", {"served_model_name": "mine"}),
        ("DELETE", path, None),
    ):
        refused = send(key, method, address, body)
        assert refused.status_code == 403, (method, address, refused.content)
        assert error_of(refused)["message"].endswith("; it is for mine."), (method, address)
        assert error_of(refused)["param"] == "model"
    assert Upload.objects.count() == 2 and Upload.objects.get(pk=other).state == "receiving"
    Upload.objects.get(pk=mine).files.update(received_bytes=64)
    renamed = send(key, "POST", f"/registry/uploads/{mine}/finish", {"served_model_name": "other"})
    assert (renamed.status_code, Upload.objects.get(pk=mine).served_model_name) == (403, "mine")
    assert send(key, "GET", f"/registry/uploads/{mine}").json()["state"] == "receiving"
    assert send(key, "DELETE", f"/registry/uploads/{mine}").json()["state"] == "cancelled"
