"""Every route of the server, with keys of each scope and without any: who gets in, and how the others are told."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.test import Client
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver
from rest_framework.views import APIView

from inference.access.api_keys import api_key_create
from inference.api.base import ApiView
from inference.transport import questions as worker_questions
from inference.values.principal import SCOPES

# A new route has to be put here: into the block of the scope that lets a key in.
NEEDED: dict[str, str] = {
    "generate": """
        POST /tokenize              POST /detokenize          POST /apply-template      POST /infill
        POST /v1/completions        POST /v1/chat/completions POST /v1/embeddings       POST /v1/rerank
        POST /v1/messages           POST /v1/messages/count_tokens
        POST /v1/responses          POST /v1/responses/input_tokens
        GET /v1/responses/<str:response_id>                   DELETE /v1/responses/<str:response_id>
        POST /v1/responses/<str:response_id>/cancel           GET /v1/responses/<str:response_id>/input_items
        GET /v1/requests            POST /v1/requests/<str:request_id>/cancel
        POST /api/generate          POST /api/chat            POST /api/embed           POST /api/embeddings
    """,
    "models": """
        GET /v1/models              GET /v1/models/<path:model_id>
        GET /v1/models/<str:model_id>/status                  GET /v1/models/<str:model_id>/fit
        GET /v1/models/<str:model_id>/revisions
        GET /api/tags               GET /api/ps               POST /api/show            GET /tokenizer_info
    """,
    "files": """
        GET /v1/files               POST /v1/files
        GET /v1/files/<str:file_id> DELETE /v1/files/<str:file_id>
        GET /v1/states              POST /v1/states           GET /v1/states/<str:name>
        POST /v1/states/<str:name>  DELETE /v1/states/<str:name>
        GET /v1/states/<str:name>/content                     POST /v1/states/<str:name>/content
        GET /v1/files/<str:file_id>/content                   GET /api/files/<str:file_id>/content
        GET /v1/batches             POST /v1/batches          GET /v1/batches/<str:batch_id>
        POST /v1/batches/<str:batch_id>/cancel
        GET /v1/batches/schedules   POST /v1/batches/schedules
        GET /v1/batches/schedules/<str:schedule_id>           DELETE /v1/batches/schedules/<str:schedule_id>
        GET /api/batches            POST /api/batches         POST /api/batches/<str:batch_id>/cancel
        POST /api/batches/check
        POST /v1/batches/<str:batch_id>/pause                 POST /v1/batches/<str:batch_id>/resume
        POST /v1/batches/<str:batch_id>/priority
        POST /api/batches/<str:batch_id>/pause                POST /api/batches/<str:batch_id>/resume
        GET /api/schedules          POST /api/schedules       GET /api/schedules/preview
        GET /api/schedules/<str:schedule_id>                  PATCH /api/schedules/<str:schedule_id>
        DELETE /api/schedules/<str:schedule_id>               POST /api/schedules/<str:schedule_id>/run
        GET /api/jobs               POST /api/jobs            GET /api/jobs/<str:job_id>
        POST /api/jobs/<str:job_id>/cancel                    GET /api/jobs/<str:job_id>/result
    """,
    "lifecycle": """
        POST /v1/models/<str:model_id>/load                   POST /v1/models/<str:model_id>/unload
        POST /v1/models/<str:model_id>/pin
    """,
    "priority": "",
    "metrics": "GET /metrics",
    "admin": """
        POST /v1/models/<str:model_id>/promote                POST /v1/models/<str:model_id>/rollback
        DELETE /v1/models/<path:model_id>
        POST /v1/load_lora_adapter  POST /v1/unload_lora_adapter
        GET /v1/keys                POST /v1/keys             DELETE /v1/keys/<str:key_id>
        DELETE /api/delete          POST /api/copy            POST /api/pull
        POST /api/create            POST /api/blobs/<str:digest>
    """,
    "any": """
        GET /v1/usage               GET /api/version
    """,
}
PUBLIC = {
    "/livez", "/readyz", "/health", "/schema", "/openapi.json", "/docs", "/v1/(?P<rest>.*)$", "/login/",
    "/logout/",
}  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def _split(block: str) -> set[str]:
    return set(re.findall(r"[A-Z]+ /\S+", block))


def _views(resolver: URLResolver, prefix: str = "/") -> Iterator[tuple[str, Any]]:
    for pattern in resolver.url_patterns:
        path = prefix + str(pattern.pattern).lstrip("^/")
        if isinstance(pattern, URLResolver):
            if path != "/admin/":  # Django's own, with its own tests
                yield from _views(pattern, path)
        elif isinstance(pattern, URLPattern) and not path.startswith(("/static/", "/favicon.ico")):
            yield path, getattr(pattern.callback, "view_class", getattr(pattern.callback, "cls", None))


def _routes(*, of_api: bool) -> set[str]:
    found = set()
    for path, view in _views(get_resolver()):
        assert view is not None, path
        if path not in PUBLIC and issubclass(view, ApiView) is of_api:
            found |= {f"{method} {path}" for method in METHODS if hasattr(view, method.lower())}
    return found


def _send(http: httpx.Client, route: str, headers: dict[str, str] | None = None) -> httpx.Response:
    method, path = route.split(" ")
    path = re.sub(r"<uuid:\w+>", str(uuid.UUID(int=7)), re.sub(r"<int:\w+>", "1", path))
    path = re.sub(r"<\w+:\w+>", "nobody-has-it", path)
    return http.request(method, path, headers=headers, json=None if method == "GET" else {})


def _is_refusal(answer: httpx.Response, status: int) -> bool:
    """Whether it is a refusal of ``status``, in the words of the API that its path belongs to."""
    path = answer.request.url.path
    if answer.status_code != status:
        return False
    error = answer.json()["error"]
    if path.startswith("/v1/messages"):
        return answer.json()["type"] == "error" and set(error) >= {"type", "message"}
    if path.startswith("/api/") and not path.startswith(("/api/jobs", "/api/files", "/api/batches", "/api/schedules")):
        return isinstance(error, str) and bool(error)
    return set(error) == {"message", "type", "param", "code"}


@pytest.fixture
def http(live_url, worker, monkeypatch) -> Iterator[httpx.Client]:
    # Nobody here answers questions about running requests.
    monkeypatch.setattr(worker_questions, "REPLY_TIMEOUT_S", 0.0)
    with httpx.Client(base_url=live_url, timeout=60, follow_redirects=False) as found:
        yield found


def test_each_scope_opens_its_routes_and_no_others(http):
    expected = {scope: _split(block) for scope, block in NEEDED.items()}
    assert _routes(of_api=True) == set().union(*expected.values())
    assert set(expected) == {*SCOPES, "any"}
    wrong = []
    for scope in SCOPES:
        headers = {"Authorization": f"Bearer {api_key_create(name=scope, scopes=[scope])[1]}"}
        for needed, routes in expected.items():
            for route in sorted(routes):
                answer = _send(http, route, headers)
                # Saving a state needs two scopes; test_principal.py has both.
                may_pass = (needed in (scope, "any") and route != "POST /v1/states") or scope == "admin"
                if _is_refusal(answer, 403) is may_pass or answer.status_code in (401, 405, 500):
                    wrong.append(f"{scope}: {route} {answer.status_code} {answer.text[:100]}")
    assert not wrong


def test_nobody_passes_without_a_key_where_one_is_required(http, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    answers = [_send(http, route) for route in sorted(_routes(of_api=True))]
    assert not [f"{answer.request.url} {answer.status_code}" for answer in answers if not _is_refusal(answer, 401)]


def test_pages_and_their_api_are_for_staff(http, django_user_model):
    """Nobody, an admin's key, and a session of somebody who is no staff member are all turned away."""
    key = {"Authorization": f"Bearer {api_key_create(name='admin', scopes=['admin'])[1]}"}
    client = Client()
    client.force_login(django_user_model.objects.create_user("visitor", password="x"))
    visitor = {"Cookie": f"sessionid={client.cookies['sessionid'].value}"}
    for route in sorted(_routes(of_api=False)):
        # An admin's key may upload and pull models, list them, and add adapters to them.
        takes_keys = re.search("/uploads|/pulls|/adapters|^GET /registry/checkpoints$", route)
        for headers in ({}, visitor) if takes_keys else ({}, key, visitor):
            answer = _send(http, route, headers)
            if "/registry/" in route:
                assert _is_refusal(answer, 403) or _is_refusal(answer, 401), (route, answer.text[:200])
            else:
                assert answer.status_code in (302, 403, 405), (route, answer.status_code)
                assert answer.status_code != 302 or "/login/" in answer.headers["location"]


def test_every_view_of_the_registry_asks_for_staff():
    assert all(issubclass(view, APIView) for path, view in _views(get_resolver()) if path.startswith("/registry/"))
