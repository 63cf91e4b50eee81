"""Clients of the live server: OpenAI's, Anthropic's and Ollama's own, and a plain one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from inference.access.api_keys import api_key_create
from inference.transport.queue_places import Queues
from inference.values.queue_place import QueuePlace
from tests.inference.api.scripted_worker import Event, Reply, ScriptedWorker


@pytest.fixture
def client(live_url: str) -> Iterator[Any]:
    """OpenAI's own client; it doesn't retry."""
    import openai

    with openai.OpenAI(base_url=f"{live_url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture
def http(live_url: str, worker: ScriptedWorker) -> Iterator[httpx.Client]:
    """A plain client of the server, with a worker behind it."""
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


@pytest.fixture
def admin_headers(transactional_db: None) -> dict[str, str]:
    """The headers of a caller with the scope admin."""
    return {"Authorization": f"Bearer {api_key_create(name='boss', scopes=['admin'])[1]}"}


@pytest.fixture
def http_as_admin(http: httpx.Client, admin_headers: dict[str, str]) -> httpx.Client:
    """``http``, with an admin's key."""
    http.headers.update(admin_headers)
    return http


@pytest.fixture
def claude(live_url: str) -> Iterator[Any]:
    """Anthropic's own client; it doesn't retry."""
    import anthropic

    with anthropic.Anthropic(base_url=live_url, api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture
def ollama(live_url: str, worker: ScriptedWorker) -> Iterator[Any]:
    """Ollama's own client."""
    import ollama

    found = ollama.Client(host=live_url)
    yield found
    found._client.close()


@pytest.fixture
def ollama_as_admin(ollama: Any, admin_headers: dict[str, str]) -> Any:
    """Ollama's own client, with an admin's key."""
    ollama._client.headers.update(admin_headers)
    return ollama


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    from blazr_site.api_docs import openapi_document

    return openapi_document()


@pytest.fixture
def in_line(worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Requests wait as the second in line until this is set; then they say Hi."""
    found = threading.Event()
    monkeypatch.setattr(Queues, "place_of", lambda *request: QueuePlace(2, "capacity", 1.5))

    def script(reply: Reply) -> Iterator[Event]:
        assert found.wait(60)
        yield reply.start()
        yield reply.delta("Hi", finish_reason="stop")
        yield reply.done()

    worker.script = script
    return found
