"""Who may call what, and errors on the wire: shapes, statuses, limits."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from django.utils import timezone

from inference.access import api_keys as auth
from inference.access.api_keys import api_key_create, api_key_revoke
from inference.models import ApiKey
from tests.inference.api.scripted_worker import say

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}

PUBLIC = ("/livez", "/readyz", "/health", "/schema", "/openapi.json", "/docs")
WITH_KEY = (
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("GET", "/v1/usage"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("DELETE", "/v1/keys/abc"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/api/jobs"),
    ("POST", "/api/jobs"),
    ("GET", "/api/jobs/00000000-0000-0000-0000-000000000000"),
    ("POST", "/api/jobs/00000000-0000-0000-0000-000000000000/cancel"),
    ("GET", "/api/jobs/00000000-0000-0000-0000-000000000000/result"),
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/file-x"),
    ("DELETE", "/v1/files/file-x"),
    ("GET", "/v1/files/file-x/content"),
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches/batch_x"),
    ("POST", "/v1/batches/batch_x/cancel"),
    ("GET", "/v1/batches/schedules"),
    ("POST", "/v1/batches/schedules"),
    ("GET", "/v1/batches/schedules/sched_x"),
    ("DELETE", "/v1/batches/schedules/sched_x"),
)


def is_error(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    if code is not None:
        assert body["error"]["code"] == code
    return body["error"]


@pytest.fixture
def http(live_url, worker):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


# --- keys --------------------------------------------------------------------------------------


def test_loopback_needs_no_key_and_takes_any(http):
    assert http.get("/v1/models").status_code == 200
    assert http.get("/v1/models", headers={"Authorization": "Bearer sk-anything"}).status_code == 200


def test_beyond_loopback_every_path_but_the_public_ones_needs_a_key(http, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    for method, path in WITH_KEY:
        for headers in ({}, {"Authorization": "Bearer sk-wrong"}, {"Authorization": "Basic eDp5"}):
            response = http.request(method, path, headers=headers, json={} if method == "POST" else None)
            is_error(response, 401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
    for path in PUBLIC:
        assert http.get(path).status_code == 200, path


def test_valid_revoked_and_expired_keys(http, settings, monkeypatch):
    settings.BLAZR_API_KEY_REQUIRED = True
    row, key = api_key_create(name="ci", expires_at=timezone.now() + timedelta(hours=1))
    headers = {"Authorization": f"Bearer {key}"}
    assert http.get("/v1/models", headers=headers).status_code == 200
    api_key_revoke(prefix=row.prefix)
    is_error(http.get("/v1/models", headers=headers), 401)
    row, key = api_key_create(name="ci")
    ApiKey.objects.filter(pk=row.pk).update(expires_at=timezone.now())
    is_error(http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}), 401)


def test_openai_raises_its_authentication_error(live_url, worker, settings):
    import openai

    settings.BLAZR_API_KEY_REQUIRED = True
    wrong = openai.OpenAI(base_url=f"{live_url}/v1", api_key="wrong", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    _, key = api_key_create(name="ci")
    with openai.OpenAI(base_url=f"{live_url}/v1", api_key=key, max_retries=0) as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == "Hello, world"
    assert worker.messages[-1]["cache_salt"].startswith("key:")


def test_pages_of_other_sites_cannot_use_a_server_without_keys(http, settings):
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    error = is_error(http.post("/v1/chat/completions", json=CHAT, headers={"Origin": "http://evil.example"}), 403)
    assert error["type"] == "permission_error"
    is_error(http.post("/v1/chat/completions", json=CHAT, headers={"Host": "evil.example"}), 400)
    port = http.base_url.port
    assert http.post("/v1/chat/completions", json=CHAT, headers={"Origin": f"http://127.0.0.1:{port}"}).is_success


def test_a_session_works_for_jobs_with_the_csrf_token_only(http, settings, admin_user, client):
    from django.test import Client

    settings.BLAZR_API_KEY_REQUIRED = True
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(admin_user)
    for name, morsel in browser.cookies.items():
        http.cookies.set(name, morsel.value)
    assert http.get("/api/jobs").status_code == 200
    body = {"endpoint": "chat", "body": CHAT}
    is_error(http.post("/api/jobs", json=body), 403)
    token = "a" * 32
    http.cookies.set("csrftoken", token)
    response = http.post("/api/jobs", json=body, headers={"X-CSRFToken": token})
    assert response.status_code == 202, response.text
    is_error(http.get("/v1/models"), 401)


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": NaN}',
        b'{"temperature": 1e999}',
        b'{"model": "\\ud800"}',
        b'{"model": "\xff"}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"[" * 10**5,
        b'{"a":' * 10**5,
        b"9" * 5000,
        b"null",
        b'"text"',
        b"[]",
    ],
)
def test_bodies_that_are_no_json_object(http, body):
    started = time.process_time()
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/api/jobs"):
        response = http.post(path, content=body, headers={"Content-Type": "application/json"})
        is_error(response, 400, "invalid_request")
    assert time.process_time() - started < 15


def test_content_types_and_encodings(http):
    is_error(http.post("/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    is_error(http.post("/v1/chat/completions", data={"model": "tiny"}), 415)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    is_error(http.post("/v1/chat/completions", content=b"\x1f\x8b" + b"0" * 100, headers=headers), 415)


def test_large_bodies_are_refused_declared_or_not(http):
    large = b'{"model": "' + b"x" * (5 << 20) + b'"}'
    headers = {"Content-Type": "application/json"}
    error = is_error(http.post("/v1/chat/completions", content=large, headers=headers), 413, "request_too_large")
    assert str(4 << 20) in error["message"]

    def pieces():
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    try:
        response = http.post("/v1/chat/completions", content=pieces(), headers=headers)
    except (httpx.WriteError, httpx.RemoteProtocolError):
        pass  # the server hung up while we were still writing
    else:
        is_error(response, 413)


def test_a_lying_content_length_is_refused_unread(live_url, worker):
    address = urlsplit(live_url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert raw.recv(1000).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "path", ["/v1/", "/v1/nothing", "/v1/images/generations", "/v1/chat", "/v1/models/a/../../b?x=1"]
)
def test_unknown_endpoints(http, path):
    for method in ("GET", "POST", "DELETE"):
        is_error(http.request(method, path), 404)


def test_wrong_methods(http):
    for method, path in (
        ("GET", "/v1/completions"),
        ("POST", "/v1/models"),
        ("DELETE", "/api/jobs"),
        ("PUT", "/tokenize"),
    ):
        response = http.request(method, path)
        is_error(response, 405, "method_not_allowed")
        assert response.headers["allow"]


def test_internal_errors_say_nothing_of_the_inside(http, monkeypatch):
    from inference.api.openai import views

    def broken(*args, **kwargs):
        raise RuntimeError("the secret")

    monkeypatch.setattr(views, "plan_from_body", broken)
    response = http.post("/v1/chat/completions", json=CHAT)
    error = is_error(response, 500, "internal_error")
    assert "secret" not in response.text
    assert error["type"] == "server_error"


def test_text_of_every_kind_comes_back_as_it_was(http, worker):
    text = "\0 \u2028 \x1b[31m é 漢字 🦀 \ufffe"
    worker.script = say(text)
    body = {"model": "tiny", "prompt": text}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == text
    assert worker.messages[-1]["prompt"]["text"] == text


def test_usage_is_recorded_in_bulk_once_per_request(http, settings):
    from inference.models import UsageRecord
    from inference.records.usage import usage_writer

    settings.BLAZR_API_KEY_REQUIRED = True
    row, key = api_key_create(name="ci")
    answer = http.post("/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {key}"}).json()
    usage_writer().flush()
    record = UsageRecord.objects.get(request_id=answer["id"])
    assert (record.tenant, record.model, record.endpoint) == (f"key:{row.pk}", "tiny", "chat")
    assert record.outcome == "completed"
    assert (record.prompt_tokens, record.completion_tokens) == (5, 2)


def test_key_cache_ends_with_a_revocation_elsewhere(http, settings, monkeypatch):
    settings.BLAZR_API_KEY_REQUIRED = True
    monkeypatch.setattr(auth, "CACHE_S", 0.2)
    row, key = api_key_create(name="ci")
    headers = {"Authorization": f"Bearer {key}"}
    assert http.get("/v1/models", headers=headers).status_code == 200
    ApiKey.objects.filter(pk=row.pk).update(revoked_at=timezone.now())  # as another process would
    time.sleep(0.3)
    is_error(http.get("/v1/models", headers=headers), 401)
