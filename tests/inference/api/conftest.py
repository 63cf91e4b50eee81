"""A live ASGI server of the API in a thread, with the real hub, broker and Redis, and a scripted worker."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings as django_settings

from blazr_site.settings.redis import RedisUrls
from tests.inference.api.scripted_worker import ScriptedWorker, say
from tests.inference.rows import make_checkpoint


@pytest.fixture
def checkpoint(transactional_db):
    return make_checkpoint()


@pytest.fixture(scope="session")
def live_url(redis_server: RedisUrls, django_db_setup: None, data_dir: Path) -> Iterator[str]:
    """URL of the server; the database's rows are the running test's."""
    import uvicorn
    from channels.auth import AuthMiddlewareStack
    from channels.routing import ProtocolTypeRouter, URLRouter
    from django.core.asgi import get_asgi_application
    from django.urls import path

    from blazr_site.asgi import Http
    from blazr_site.bare_handler import BareHandler
    from blazr_site.body_limit import BodyLimit
    from inference.consumers import StreamConsumer
    from inference.records import usage
    from inference.transport import hub as streams

    old_url = django_settings.BLAZR_REDIS_URL
    django_settings.BLAZR_REDIS_URL = redis_server.client
    streams.set_hub(None)
    # The writer's thread would look for the database between tests, where it is forbidden; tests flush themselves.
    usage.FLUSH_INTERVAL_S = 24 * 3600.0
    app = ProtocolTypeRouter(
        {
            "http": Http(BodyLimit(BareHandler(), 4 << 20), BodyLimit(get_asgi_application(), 4 << 20)),
            "websocket": AuthMiddlewareStack(URLRouter([path("v1/stream", StreamConsumer.as_asgi())])),
        }
    )
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2))

    async def serve() -> None:
        await server.serve(sockets=[listener])
        if streams._hub is not None:
            await streams._hub.close()
        streams.set_hub(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    for _ in range(200):
        if server.started:
            break
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    usage.usage_writer().close()
    django_settings.BLAZR_REDIS_URL = old_url


@pytest.fixture
def worker(redis_server: RedisUrls, checkpoint: Any) -> Iterator[ScriptedWorker]:
    """A worker that holds the test's checkpoint."""
    scripted = ScriptedWorker(redis_server.client)
    scripted.checkpoint_ids.add(str(checkpoint.pk))
    scripted.script = say("Hello", ", world")
    yield scripted
    scripted.stop()


@pytest.fixture
def client(live_url: str) -> Iterator[Any]:
    """OpenAI's own client; it doesn't retry."""
    import openai

    with openai.OpenAI(base_url=f"{live_url}/v1", api_key="none", max_retries=0, timeout=20) as found:
        yield found


@pytest.fixture
def http(live_url: str, worker: ScriptedWorker) -> Iterator[httpx.Client]:
    """A plain client of the server, with a worker behind it."""
    with httpx.Client(base_url=live_url, timeout=20) as found:
        yield found


@pytest.fixture
def claude(live_url: str) -> Iterator[Any]:
    """Anthropic's own client; it doesn't retry."""
    import anthropic

    with anthropic.Anthropic(base_url=live_url, api_key="none", max_retries=0, timeout=20) as found:
        yield found


@pytest.fixture
def ollama(live_url: str, worker: ScriptedWorker) -> Iterator[Any]:
    """Ollama's own client."""
    import ollama

    found = ollama.Client(host=live_url)
    yield found
    found._client.close()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    from blazr_site.api_docs import openapi_document

    return openapi_document()
