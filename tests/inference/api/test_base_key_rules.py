"""What keys may do and how much, on the wire: scopes, models, limits and their headers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
import redis
from django.db import connections
from django.urls import reverse
from django.utils import timezone

from inference.access import api_keys as auth
from inference.access import key_watch
from inference.access.api_keys import api_key_create, key_prefix
from inference.models import ApiKey, GenerationJob
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.scripted_worker import say
from tests.inference.api.test_base import CHAT, is_error
from tests.inference.rows import make_checkpoint


@pytest.fixture
def http(live_url, worker, redis_server):
    yield from _http(live_url)
    client = redis.Redis.from_url(redis_server.client)
    for pattern in ("limit", "open", "lines"):
        for key in client.scan_iter(f"{redis_keys.PREFIX}{pattern}:*"):
            client.delete(key)
    client.close()


def _http(live_url):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def bearer(**rules: Any) -> dict[str, str]:
    _, key = api_key_create(name="test", **rules)
    return {"Authorization": f"Bearer {key}"}


# --- scopes and models -------------------------------------------------------------------------


def test_a_key_reaches_what_its_scopes_cover(http):
    headers = bearer(scopes=["models"])
    assert http.get("/v1/models", headers=headers).status_code == 200
    error = is_error(http.post("/v1/chat/completions", json=CHAT, headers=headers), 403, "permission_denied")
    assert "'generate'" in error["message"]
    is_error(http.get("/api/jobs", headers=headers), 403)
    assert http.get("/livez", headers=headers).status_code == 200
    assert http.post("/v1/chat/completions", json=CHAT, headers=bearer(scopes=["admin"])).status_code == 200


def test_a_key_sees_and_uses_its_models_only(http, worker):
    other = make_checkpoint("other")
    worker.checkpoint_ids.add(str(other.pk))
    headers = bearer(models=["tiny"])
    assert [item["id"] for item in http.get("/v1/models", headers=headers).json()["data"]] == ["tiny"]
    is_error(http.get("/v1/models/other", headers=headers), 404)
    assert http.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
    for name in ("other", "nobody-has-it"):
        for path, body in (
            ("/v1/chat/completions", {**CHAT, "model": name}),
            ("/tokenize", {"model": name, "prompt": "a"}),
            ("/api/jobs", {"endpoint": "chat", "body": {**CHAT, "model": name}}),
        ):
            error = is_error(http.post(path, json=body, headers=headers), 403, "permission_denied")
            assert error["param"] == "model"
    # The next caller of the same server, without a key, is not held to them.
    assert http.post("/v1/chat/completions", json={**CHAT, "model": "other"}).status_code == 200


def test_keys_from_before_there_were_rules_work_as_they_did(http):
    headers = bearer()
    row = ApiKey.objects.get()
    assert row.scopes == ["files", "generate", "models"]
    assert http.get("/v1/models", headers=headers).status_code == 200
    assert http.get("/api/jobs", headers=headers).status_code == 200
    response = http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("x-ratelimit")]


# --- limits ------------------------------------------------------------------------------------


def test_answers_carry_the_rest_and_the_next_request_is_refused(http):
    headers = bearer(limits=KeyLimits(requests=2, tokens=10_000))
    body = {**CHAT, "max_tokens": 100}
    first = http.post("/v1/chat/completions", json=body, headers=headers)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-limit-tokens"] == "10000"
    assert 9_800 < int(first.headers["x-ratelimit-remaining-tokens"]) < 9_900
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}, headers=headers) as second:
        assert second.headers["x-ratelimit-remaining-requests"] == "0"
        assert b"[DONE]" in second.read()
    third = http.post("/v1/chat/completions", json=body, headers=headers)
    error = is_error(third, 429, "rate_limit_exceeded")
    assert error["type"] == "rate_limit_error"
    assert 1 <= int(third.headers["retry-after"]) <= 30
    assert third.headers["x-should-retry"] == "true"
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    # What isn't computed isn't counted, and other keys have counters of their own.
    assert http.get("/v1/models", headers=headers).status_code == 200
    assert http.post("/v1/chat/completions", json=body, headers=bearer()).status_code == 200


def test_tokens_of_an_answer_are_settled(http):
    # The bucket fills by 100 tokens a second: what is reserved comes back by the settlement or not for minutes.
    headers = bearer(limits=KeyLimits(tokens=6_000))

    def remaining(max_tokens: int) -> int:
        response = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": max_tokens}, headers=headers)
        return int(response.headers["x-ratelimit-remaining-tokens"])

    assert remaining(5_900) < 100
    # Settlements follow the answers: the first try may be ahead of one.
    wait_for(lambda: remaining(1) > 5_500, 40)


def test_open_requests_are_limited_and_a_client_that_leaves_makes_room(http, worker):
    headers = bearer(limits=KeyLimits(concurrent=1))

    def never_ending(reply):
        yield reply.start()
        reply.cancelled.wait(60)

    worker.script = never_ending
    with http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers) as running:
        assert running.status_code == 200
        refused = http.post("/v1/chat/completions", json=CHAT, headers=headers)
        error = is_error(refused, 429, "rate_limit_exceeded")
        assert "1 requests of this API key are open, its limit is 1" in error["message"]
    worker.script = say("Hello")
    wait_for(lambda: http.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200)


@pytest.mark.parametrize("stream", [True, False])
def test_what_runs_under_a_revoked_key_is_ended(http, worker, monkeypatch, stream):
    monkeypatch.setattr(key_watch, "WATCH_S", 0.1)
    cancelled = []

    def never_ending(reply):
        yield reply.start()
        yield reply.delta("a")
        # As another process would: this one's cache knows nothing of it.
        ApiKey.objects.update(revoked_at=timezone.now())
        connections.close_all()
        cancelled.append(reply.cancelled.wait(60))

    worker.script = never_ending
    answer = http.post("/v1/chat/completions", json={**CHAT, "stream": stream}, headers=bearer())
    assert "was revoked" in answer.text
    assert '"invalid_api_key"' in answer.text
    assert answer.status_code == (200 if stream else 401)
    wait_for(lambda: cancelled)
    assert cancelled == [True]


def test_queued_lines_are_limited(http):
    headers = bearer(limits=KeyLimits(lines=3))
    jobs = {"jobs": [{"endpoint": "chat", "body": CHAT}] * 2}
    assert http.post("/api/jobs", json=jobs, headers=headers).status_code == 202
    is_error(http.post("/api/jobs", json=jobs, headers=headers), 429, "rate_limit_exceeded")
    GenerationJob.objects.update(state="succeeded")
    assert http.post("/api/jobs", json=jobs, headers=headers).status_code == 202


def test_the_servers_defaults_hold_for_keys_without_limits(http, settings):
    settings.BLAZR_KEY_RPM = 1
    headers = bearer()
    own = bearer(limits=KeyLimits(requests=5))
    assert http.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
    is_error(http.post("/v1/chat/completions", json=CHAT, headers=headers), 429)
    for _ in range(2):
        assert http.post("/v1/chat/completions", json=CHAT, headers=own).status_code == 200


def test_openais_client_raises_its_rate_limit_error(live_url, http):
    headers = bearer(limits=KeyLimits(tokens=50))
    key = headers["Authorization"].removeprefix("Bearer ")
    with (
        openai.OpenAI(base_url=f"{live_url}/v1", api_key=key) as client,
        pytest.raises(openai.RateLimitError, match="lower max_tokens") as caught,
    ):
        # Retries would take seconds: the server says that none can help.
        client.chat.completions.create(**CHAT, max_tokens=1000)
    assert caught.value.code == "rate_limit_exceeded"


def test_a_websocket_counts_like_http(live_url, http):
    from websockets.sync.client import connect

    headers = bearer(limits=KeyLimits(requests=1), models=["tiny"])
    with connect(f"ws{live_url.removeprefix('http')}/v1/stream", additional_headers=headers) as socket:

        def last(model: str) -> dict[str, Any]:
            request = {"messages": CHAT["messages"], "model": model}
            socket.send(json.dumps({"type": "chat", "id": "a", "request": request}))
            while True:
                frame = json.loads(socket.recv(10))
                if frame["type"] in ("done", "error"):
                    return frame

        assert last("other")["status"] == 403
        assert last("tiny")["type"] == "done"
        refused = last("tiny")
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")


def test_a_websocket_ends_with_its_key(live_url, http, settings, worker, monkeypatch):
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    settings.BLAZR_API_KEY_REQUIRED = True
    monkeypatch.setattr(auth, "CACHE_S", 0.0)
    headers = bearer()
    request = {"type": "chat", "id": "a", "request": {"messages": CHAT["messages"], "model": "tiny"}}
    with connect(f"ws{live_url.removeprefix('http')}/v1/stream", additional_headers=headers) as socket:
        socket.send(json.dumps(request))
        while json.loads(socket.recv(10))["type"] != "done":
            pass
        ApiKey.objects.update(revoked_at=timezone.now())
        socket.send(json.dumps(request))
        refused = json.loads(socket.recv(10))
        assert (refused["id"], refused["status"], refused["error"]["code"]) == ("a", 401, "invalid_api_key")
        with pytest.raises(ConnectionClosed):
            socket.recv(10)
        assert socket.close_code == 4401
    assert len(worker.messages) == 1


# --- keys over the API -------------------------------------------------------------------------


def test_an_admin_key_makes_lists_and_revokes_keys(http, redis_server):
    boss = bearer(scopes=["admin"])
    wanted = {"scopes": ["generate"], "models": ["tiny"], "expires_at": 4_000_000_000, "requests_per_minute": 9}
    made = http.post("/v1/keys", json={"name": "ci", **wanted}, headers={**boss, "Idempotency-Key": "k"})
    assert made.status_code == 201, made.text
    assert made.headers["cache-control"] == "no-store"
    found = made.json()
    assert {name: found[name] for name in wanted} == wanted
    assert found["tokens_per_minute"] is None
    key = found["value"]
    assert key_prefix(key) == found["id"]
    # The secret is nowhere in Redis, so it can't be given again; nor is a second key made.
    again = http.post("/v1/keys", json={"name": "ci", **wanted}, headers={**boss, "Idempotency-Key": "k"})
    assert "isn't kept" in is_error(again, 409, "conflict")["message"]
    client = redis.Redis.from_url(redis_server.client)
    (stored,) = client.scan_iter(f"{redis_keys.PREFIX}idem:*")
    assert key.encode() not in b"".join(client.hgetall(stored).values())
    client.delete(stored)
    client.close()

    own = {"Authorization": f"Bearer {key}"}
    assert http.post("/v1/chat/completions", json=CHAT, headers=own).status_code == 200
    for method, path in (("GET", "/v1/keys"), ("POST", "/v1/keys"), ("DELETE", f"/v1/keys/{found['id']}")):
        is_error(http.request(method, path, headers=own), 403, "permission_denied")
    listed = http.get("/v1/keys", params={"limit": 1}, headers=boss).json()
    assert listed["has_more"] is True
    assert listed["data"] == [{name: value for name, value in found.items() if name != "value"}]
    assert http.delete(f"/v1/keys/{found['id']}", headers=boss).json()["revoked_at"] is not None
    is_error(http.delete("/v1/keys/nobody", headers=boss), 404)
    is_error(http.get("/v1/models", headers=own), 401)  # also on loopback, where no key is needed


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["root"]}, "scopes"),
        ({"name": "x", "models": [""]}, "models"),
        ({"name": "x", "expires_at": 5}, "expires_at"),
        ({"name": "x", "expires_at": 10**15}, "expires_at"),
        ({"name": "x", "requests_per_minute": 0}, "requests_per_minute"),
        ({"name": "x", "tokens_per_minute": "5"}, "tokens_per_minute"),
        ({"name": "x", "rpm": 5}, "rpm"),
    ],
)
def test_wrong_keys_are_refused_by_name(http, body, param):
    headers = bearer(scopes=["admin"])
    assert (is_error(http.post("/v1/keys", json=body, headers=headers), 400)["param"] or "").startswith(param)
    assert ApiKey.objects.count() == 1


# --- the admin ---------------------------------------------------------------------------------


def test_the_admin_makes_and_changes_a_key_with_rules(admin_client):
    values = {
        "name": "ci",
        "scopes": ["generate", "admin"],
        "allowed_models": "tiny, other",
        "requests_per_minute": "7",
        "max_queued_lines": "100",
    }
    admin_client.post(reverse("admin:inference_apikey_add"), values, follow=True)
    row = ApiKey.objects.get()
    assert row.scopes == ["admin", "generate"]
    assert row.allowed_models == ["other", "tiny"]
    assert (row.requests_per_minute, row.tokens_per_minute, row.max_queued_lines) == (7, None, 100)
    page = reverse("admin:inference_apikey_change", args=[row.pk])
    assert "other, tiny" in admin_client.get(page).content.decode()
    admin_client.post(page, {**values, "scopes": ["generate"], "allowed_models": "", "requests_per_minute": ""})
    row.refresh_from_db()
    assert (row.scopes, row.allowed_models, row.requests_per_minute) == (["generate"], [], None)
    for wrong in ({"scopes": ["root"]}, {"requests_per_minute": "0"}, {"scopes": []}):
        admin_client.post(page, {**values, **wrong})
        row.refresh_from_db()
        assert row.requests_per_minute is None, wrong
    assert key_prefix(row.prefix) is None
