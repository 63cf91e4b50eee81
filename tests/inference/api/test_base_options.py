"""Options and routes that affect the requests of others: every way in needs the scope for them."""

from __future__ import annotations

from typing import Any

import pytest

from inference.access.api_keys import api_key_create
from tests.inference.api.test_base import is_error
from tests.inference.batches.fakes import store_file

TEXT = {"model": "tiny", "prompt": "a", "max_tokens": 2}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
VECTORS = {"model": "tiny", "input": "a"}

KEEPS = {
    "/v1/completions": TEXT,
    "/v1/chat/completions": CHAT,
    "/v1/embeddings": VECTORS,
    "/v1/rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
    "/api/generate": {"model": "tiny", "prompt": "a", "stream": False},
    "/api/chat": {"model": "tiny", "messages": CHAT["messages"], "stream": False},
    "/api/embed": VECTORS,
    "/api/embeddings": {"model": "tiny", "prompt": "a"},
}
"""Routes whose body may have keep_alive."""
RANKS = {
    "/v1/completions": TEXT,
    "/v1/chat/completions": CHAT,
    "/v1/embeddings": VECTORS,
    "/v1/rerank": KEEPS["/v1/rerank"],
    "/v1/responses": {"model": "tiny", "input": "a", "max_output_tokens": 16},
}
"""Routes whose body may have a priority."""


def bearer(*scopes: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key_create(name='test', scopes=scopes)[1]}"}


def is_refused(response: Any, param: str) -> bool:
    if response.status_code != 403:
        return False
    error = response.json()["error"]
    return (error if isinstance(error, str) else error["message"]).startswith(f"{param} is ")


@pytest.mark.parametrize("path", KEEPS)
def test_only_lifecycle_pins_and_unloads_models_by_keep_alive(http, path):
    ordinary, special = bearer("generate"), bearer("generate", "lifecycle")
    for value in (-1, 0, 1, "24h"):
        assert is_refused(http.post(path, json={**KEEPS[path], "keep_alive": value}, headers=ordinary), "keep_alive")
        assert not is_refused(http.post(path, json={**KEEPS[path], "keep_alive": value}, headers=special), "keep_alive")
    assert not is_refused(http.post(path, json={**KEEPS[path], "keep_alive": "5m"}, headers=ordinary), "keep_alive")


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_ollamas_load_and_unload_without_a_prompt(http, path):
    """A load is what any request does; an unload takes the model from others."""
    headers = bearer("generate")
    assert http.post(path, json={"model": "tiny"}, headers=headers).json()["done_reason"] == "load"
    assert is_refused(http.post(path, json={"model": "tiny", "keep_alive": 0}, headers=headers), "keep_alive")
    assert is_refused(http.post(path, json={"model": "tiny", "keep_alive": -1}, headers=headers), "keep_alive")


@pytest.mark.parametrize("path", RANKS)
def test_only_the_scope_priority_goes_ahead_of_others(http, path):
    ordinary, special = bearer("generate"), bearer("generate", "priority")
    assert is_refused(http.post(path, json={**RANKS[path], "priority": -1}, headers=ordinary), "priority")
    assert not is_refused(http.post(path, json={**RANKS[path], "priority": -1}, headers=special), "priority")
    assert not is_refused(http.post(path, json={**RANKS[path], "priority": 1}, headers=ordinary), "priority")


@pytest.mark.parametrize("options", [{"priority": -1}, {"keep_alive": -1}])
def test_jobs_and_background_responses_are_held_to_the_same(http, options):
    headers = bearer("generate", "files")
    (param,) = options
    job = {"endpoint": "chat", "body": {**CHAT, **options}}
    assert is_refused(http.post("/api/jobs", json=job, headers=headers), param)
    error = is_error(http.post("/api/jobs", json={"jobs": [job, job]}, headers=headers), 403, "permission_denied")
    assert error["param"] == f"jobs.0.body.{param}"
    if param == "priority":
        body = {**RANKS["/v1/responses"], "background": True, **options}
        assert is_refused(http.post("/v1/responses", json=body, headers=headers), param)


def test_batches_and_schedules_go_ahead_with_the_scope_only(http):
    from inference.access.api_keys import key_prefix, principal_of_tenant
    from inference.models import ApiKey

    headers = bearer("files")
    row = ApiKey.objects.get(prefix=key_prefix(headers["Authorization"].split()[1]))
    file = store_file([b"{}"], principal_of_tenant(f"key:{row.pk}"))
    body = {"input_file_id": file.file_id, "endpoint": "/v1/completions", "completion_window": "24h", "priority": -1}
    assert is_refused(http.post("/v1/batches", json=body, headers=headers), "priority")
    schedule = {**body, "cron": "0 3 * * *"}
    assert is_refused(http.post("/v1/batches/schedules", json=schedule, headers=headers), "priority")
    assert http.post("/v1/batches", json={**body, "priority": 0}, headers=headers).status_code == 200


@pytest.mark.parametrize("action", ["load", "unload", "pin"])
def test_models_are_loaded_by_hand_with_lifecycle_only(http, action):
    path = f"/v1/models/tiny/{action}"
    error = is_error(http.post(path, json={}, headers=bearer("generate", "models", "files")), 403, "permission_denied")
    assert "'lifecycle'" in error["message"]
    assert http.post(path, json={}, headers=bearer("lifecycle")).status_code in (200, 202)


@pytest.mark.parametrize("path", ["/v1/models/tiny/promote", "/v1/models/tiny/rollback", "/api/pull", "/api/copy"])
def test_what_a_name_means_is_for_admins(http, path):
    assert http.post(path, json={}, headers=bearer("lifecycle", "models", "generate")).status_code == 403
