"""Every POST of the API against every limit of a key: the table says which limits hold it, and it is true."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
import redis
from django.urls import get_resolver
from django.utils import timezone
from websockets.sync.client import connect

from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.api.base import ApiView
from inference.api.responses import truncation
from inference.errors import InvalidRequest
from inference.models import ApiKey, GenerationJob
from inference.transport import keys as redis_keys
from inference.transport import questions as worker_questions
from inference.values.limits import KeyLimits
from inference.values.plan import GenerationPlan
from inference.values.principal import SCOPES
from tests.inference.api.test_urls import _views
from tests.inference.batches.fakes import line, store_file

LIMITS = ("requests", "tokens", "concurrent", "lines")
COMPUTES = frozenset({"requests", "tokens", "concurrent"})
STORES = frozenset(LIMITS)
NOTHING: frozenset[str] = frozenset()
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
TEXT = {"model": "tiny", "prompt": "a"}

# Path → the limits that hold it, and a body that they would let pass.
DECLARED: dict[str, tuple[frozenset[str], dict[str, Any]]] = {
    "/v1/completions": (COMPUTES, TEXT),
    "/v1/chat/completions": (COMPUTES, CHAT),
    "/v1/embeddings": (COMPUTES, {"model": "tiny", "input": "a"}),
    "/v1/rerank": (COMPUTES, {"model": "tiny", "query": "a", "documents": ["b"]}),
    "/v1/messages": (COMPUTES, {**CHAT, "max_tokens": 5}),
    "/v1/messages/count_tokens": (COMPUTES, CHAT),
    "/v1/responses": (COMPUTES, {"model": "tiny", "input": "a"}),
    "/v1/responses?background": (STORES, {"model": "tiny", "input": "a", "background": True}),
    "/v1/responses/input_tokens": (COMPUTES, {"model": "tiny", "input": "a"}),
    "/api/generate": (COMPUTES, TEXT),
    "/api/chat": (COMPUTES, CHAT),
    "/api/embed": (COMPUTES, {"model": "tiny", "input": "a"}),
    "/api/embeddings": (COMPUTES, TEXT),
    "/tokenize": (COMPUTES, TEXT),
    "/detokenize": (COMPUTES, {"model": "tiny", "tokens": [1]}),
    "/apply-template": (COMPUTES, CHAT),
    "/infill": (COMPUTES, {"model": "tiny", "input_prefix": "a", "input_suffix": "b"}),
    "/v1/states": (COMPUTES, {"name": "a", **TEXT}),
    "/api/jobs": (STORES, {"endpoint": "chat", "body": CHAT}),
    "/v1/batches": (STORES, {"endpoint": "/v1/completions", "completion_window": "24h"}),
    "/api/batches": (STORES, {"endpoint": "/v1/completions", "completion_window": "24h"}),
    # Ends work, so it is always possible.
    "/v1/responses/<str:response_id>/cancel": (NOTHING, {}),
    "/v1/batches/<str:batch_id>/cancel": (NOTHING, {}),
    "/api/batches/<str:batch_id>/cancel": (NOTHING, {}),
    "/v1/batches/<str:batch_id>/pause": (NOTHING, {}),
    "/api/batches/<str:batch_id>/pause": (NOTHING, {}),
    "/v1/batches/<str:batch_id>/resume": (NOTHING, {}),
    "/v1/batches/<str:batch_id>/priority": (NOTHING, {"priority": 0}),
    "/api/batches/<str:batch_id>/resume": (NOTHING, {}),
    "/api/jobs/<str:job_id>/cancel": (NOTHING, {}),
    "/v1/requests/<str:request_id>/cancel": (NOTHING, {}),
    **{
        path: (COMPUTES, {})
        for path in (
            "/v1/states/<str:name>", "/v1/states/<str:name>/content",
            "/v1/files", "/v1/batches/schedules", "/api/schedules", "/api/schedules/<str:schedule_id>/run",
            "/v1/keys", "/api/show", "/api/pull", "/api/copy", "/api/create",
            "/api/blobs/<str:digest>", "/api/batches/check",
            "/v1/models/<str:model_id>/load", "/v1/models/<str:model_id>/unload", "/v1/models/<str:model_id>/pin",
            "/v1/models/<str:model_id>/promote", "/v1/models/<str:model_id>/rollback",
            "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
        )
    },
}  # fmt: skip


@pytest.fixture
def counters(redis_server) -> Iterator[Any]:
    client = redis.Redis.from_url(redis_server.client)
    yield client
    for pattern in ("limit", "open"):
        for key in client.scan_iter(f"{redis_keys.PREFIX}{pattern}:*"):
            client.delete(key)
    client.close()


def limited_key(limit: str, counters: Any) -> tuple[str, dict[str, str]]:
    """A key that has reached its limit and may do everything else: its tenant and its header."""
    row, key = api_key_create(
        name=limit, scopes=tuple(SCOPES), limits=KeyLimits(**{limit: 1000 if limit == "tokens" else 1})
    )
    tenant = f"key:{row.pk}"
    if limit == "concurrent":
        counters.zadd(redis_keys.limit_open(tenant), {"another": time.time() + 3600})
    elif limit == "lines":
        GenerationJob.objects.create(
            tenant=tenant, endpoint="chat", model="m", plan="{}", digest="", created_at=timezone.now(),
            checkpoint_id="00000000-0000-4000-8000-000000000000",
        )  # fmt: skip
    else:
        counters.hset(redis_keys.limit_counters(tenant), mapping={limit: -1000, "at": time.time()})
    return tenant, {"Authorization": f"Bearer {key}"}


def test_each_route_is_declared():
    routes = {
        path
        for path, view in _views(get_resolver())
        if view is not None and issubclass(view, ApiView) and not view.public and hasattr(view, "post")
    }
    assert routes == {path.partition("?")[0] for path in DECLARED}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_reached_limit_holds_the_routes_that_are_declared(live_url, worker, counters, monkeypatch, limit):
    monkeypatch.setattr(worker_questions, "REPLY_TIMEOUT_S", 0.0)  # nobody here knows of running requests
    worker.script = lambda reply: iter([reply.error(InvalidRequest("no limit holds it"))])
    tenant, headers = limited_key(limit, counters)
    file = store_file([line("a")], principal_of_tenant(tenant))
    wrong = []
    with httpx.Client(base_url=live_url, timeout=60, headers=headers) as http:
        for path, (limits, body) in DECLARED.items():
            if path.endswith("/batches"):
                body = {**body, "input_file_id": file.file_id}
            target = path.partition("?")[0].replace("<str:", "").replace(">", "")
            response = http.post(target, json=body)
            if (response.status_code == 429) is not (limit in limits) or response.status_code == 500:
                wrong.append(f"{path} {limit}: {response.status_code} {response.text[:120]}")
    assert not wrong, "\n".join(wrong)


def test_a_reached_limit_holds_before_a_conversation_is_cut(live_url, worker, counters, monkeypatch):
    counted = []

    async def count(plan: GenerationPlan) -> tuple[int, int]:
        counted.append(plan)
        return 0, 100

    monkeypatch.setattr(truncation, "prompt_tokens", count)
    _, headers = limited_key("requests", counters)
    items = [{"role": "user", "content": str(number)} for number in range(8)]
    body = {"model": "tiny", "input": items, "truncation": "auto"}
    response = httpx.post(f"{live_url}/v1/responses", json=body, headers=headers, timeout=60)
    assert (response.status_code, counted) == (429, [])


@pytest.mark.parametrize("limit", ["requests", "tokens", "concurrent"])
def test_a_reached_limit_holds_the_websocket(live_url, worker, counters, limit):
    _, headers = limited_key(limit, counters)
    with connect(f"{live_url.replace('http', 'ws', 1)}/v1/stream", additional_headers=headers) as socket:
        socket.send(orjson.dumps({"type": "chat", "id": "a", "request": CHAT}))
        frame = orjson.loads(socket.recv(timeout=60))
    assert (frame["type"], frame["status"]) == ("error", 429)


def test_a_submission_counts_as_a_request_and_its_tokens_when_its_lines_start(live_url, worker, counters):
    row, key = api_key_create(name="batches", limits=KeyLimits(tokens=10))
    tenant = f"key:{row.pk}"
    file = store_file([line(str(number)) for number in range(50)], principal_of_tenant(tenant))
    body = {"input_file_id": file.file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    with httpx.Client(base_url=live_url, timeout=60, headers={"Authorization": f"Bearer {key}"}) as http:
        assert http.post("/v1/batches", json=body).headers["x-ratelimit-remaining-tokens"] == "10"
        jobs = {"jobs": 9 * [{"endpoint": "completion", "body": {**TEXT, "max_tokens": 50}}]}
        assert http.post("/api/jobs", json=jobs).headers["x-ratelimit-remaining-tokens"] == "10"
        assert http.post("/v1/completions", json={**TEXT, "max_tokens": 1}).status_code == 200
    assert ApiKey.objects.count() == 1
