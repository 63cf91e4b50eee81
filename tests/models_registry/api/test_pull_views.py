"""Pulls over HTTP with a key: started, listed, followed, cancelled."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from inference.access.api_keys import api_key_create
from models_registry import pull_jobs
from models_registry.models import PullJob
from models_registry.services import checkpoint_register
from tests.models_registry.tiny_hub import tiny_hub


@pytest.fixture
def send(db, monkeypatch, settings):
    monkeypatch.setattr(pull_jobs, "_start", lambda pull_id: None)
    settings.BLAZR_MAX_PULLS = 2
    headers = {"Authorization": f"Bearer {api_key_create(name='boss', scopes=['admin'])[1]}"}

    def request(method: str, path: str, body: object = None):
        content = b"" if body is None else json.dumps(body).encode()
        return Client().generic(method, f"/registry/pulls{path}", content, "application/json", headers=headers)

    return request


@pytest.mark.django_db(transaction=True)
def test_a_pull_is_started_followed_and_cancelled(send):
    created = send("POST", "", {"model": "org/tiny", "served_model_name": "mine"})
    assert created.status_code == 202, created.content
    row = created.json()
    assert (row["state"], row["origin"], row["registered_as"]) == ("running", "org/tiny", "")
    assert [item["id"] for item in send("GET", "").json()] == [row["id"]]
    assert send("GET", f"/{row['id']}").json()["served_model_name"] == "mine"
    assert send("DELETE", f"/{row['id']}").json()["state"] == "cancelled"
    assert send("GET", "/00000000-0000-0000-0000-000000000000").status_code == 404
    for body in ({}, {"model": "nothing"}, {"model": "org/a", "served_model_name": "a b"}):
        assert send("POST", "", body).status_code == 400
    assert PullJob.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_key_for_some_models_pulls_no_others(send):
    part = {"Authorization": f"Bearer {api_key_create(name='part', scopes=['admin'], models=['mine'])[1]}"}

    def try_to(method: str, path: str, body: object = None):
        content = b"" if body is None else json.dumps(body).encode()
        return Client().generic(method, f"/registry/pulls{path}", content, "application/json", headers=part)

    other = send("POST", "", {"model": "org/other"}).json()["id"]
    for method, path, body in (
        ("POST", "", {"model": "org/tiny"}),
        ("POST", "", {"model": "org/mine", "served_model_name": "tiny"}),
        ("POST", "", {"model": "org/other", "served_model_name": "mine"}),  # it runs already, for another model
        ("GET", f"/{other}", None),
        ("DELETE", f"/{other}", None),
    ):
        refused = try_to(method, path, body)
        assert refused.status_code == 403, (method, path, refused.content)
        assert refused.json()["error"]["message"].endswith("; it is for mine."), (method, path)
    assert [row.origin for row in PullJob.objects.filter(state="running")] == ["org/other"]
    assert try_to("GET", "").json() == []
    mine = try_to("POST", "", {"model": "org/mine"})
    assert mine.status_code == 202
    assert [row["id"] for row in try_to("GET", "").json()] == [mine.json()["id"]]
    assert try_to("DELETE", f"/{mine.json()['id']}").json()["state"] == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_what_is_wrong_or_not_allowed_has_a_status(send, settings, hybrid):
    checkpoint_register(path=hybrid, served_model_name="taken")
    assert send("POST", "", {"model": "org/tiny", "served_model_name": "taken"}).status_code == 409
    for body in ({}, {"model": "nothing"}, {"model": "org/tiny:a tag"}):
        assert send("POST", "/preview", body).status_code == 400
    assert send("GET", "/search").status_code == 400
    settings.BLAZR_MAX_PULLS = 0
    for response in (send("POST", "/preview", {"model": "org/tiny"}), send("GET", "/search?text=tiny")):
        assert response.status_code == 403 and "BLAZR_MAX_PULLS" in response.json()["error"]["message"]


@pytest.mark.django_db(transaction=True)
def test_a_preview_and_a_search(send, hybrid, tmp_path, monkeypatch):
    with tiny_hub(hybrid) as (endpoint, _):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        found = send("POST", "/preview", {"model": "hf.co/org/tiny"}).json()
        assert (found["origin"], found["can_be_pulled"], len(found["files"])) == ("org/tiny", True, 2)
        assert send("GET", "/search?text=tiny").json()[0]["repo_id"] == "org/tiny"
    wheel = send("POST", "/preview", {"model": "pypi:tiny"}).json()
    assert "files" not in wheel and wheel["can_be_pulled"]
