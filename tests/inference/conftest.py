"""What every test of the package has: empty caches; for those that need it, a live server and a scripted worker."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as django_settings

from blazr_site.settings.redis import RedisUrls

if TYPE_CHECKING:
    from tests.inference.api.scripted_worker import ScriptedWorker


@pytest.fixture(autouse=True)
def fresh_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    from inference.access.api_keys import key_cache_clear
    from inference.serving import full_queues
    from inference.serving.served_models import served_model_cache_clear

    served_model_cache_clear()
    key_cache_clear()
    monkeypatch.setattr(full_queues, "_queues", full_queues.FullQueues())


@pytest.fixture
def redis_client(redis_urls_in_settings: RedisUrls) -> Iterator[Any]:
    """A client of the session's Redis, which is emptied."""
    import redis

    with redis.Redis.from_url(redis_urls_in_settings.client, protocol=2) as found:
        yield found


@pytest.fixture
def expiry_after_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that takes too long ends when it has started, however long a busy machine takes until then."""
    from inference.serving.generation import Generation

    expire = Generation._expire

    def expire_when_started(generation: Generation) -> None:
        if generation._started.is_set():
            expire(generation)
        else:
            generation._timer = asyncio.get_running_loop().call_later(0.05, expire_when_started, generation)

    monkeypatch.setattr(Generation, "_expire", expire_when_started)


@pytest.fixture(scope="module")
def two_threads() -> Iterator[None]:
    """For tests of what compute threads do together, also where each process has one (``tests/lanes.py``)."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(before, 2))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def checkpoint(transactional_db):
    from tests.inference.rows import make_checkpoint

    return make_checkpoint()


@pytest.fixture(scope="session")
def live_url(redis_server: RedisUrls, django_db_setup: None, data_dir: Path) -> Iterator[str]:
    """URL of a live ASGI server of the API in a thread; the database's rows are the running test's."""
    import uvicorn
    from channels.auth import AuthMiddlewareStack
    from channels.routing import ProtocolTypeRouter, URLRouter
    from django.core.asgi import get_asgi_application
    from django.urls import path

    from blazr_site.asgi import Http
    from blazr_site.bare_handler import BareHandler
    from blazr_site.body_budget import BodyBudget
    from blazr_site.body_limit import BodyLimit
    from blazr_site.http_protocol import HttpProtocol
    from blazr_site.socket_protocol import WebSocketProtocol
    from inference.consumers import StreamConsumer
    from inference.transport import hub as streams

    old_url = django_settings.BLAZR_REDIS_URL
    django_settings.BLAZR_REDIS_URL = redis_server.client
    streams.set_hub(None)
    budget = BodyBudget(total_bytes=32 << 20, caller_bytes=16 << 20)
    running = BodyBudget(total_bytes=32 << 20, caller_bytes=16 << 20)
    stream = StreamConsumer.as_asgi(arriving=budget, running=running)
    app = ProtocolTypeRouter(
        {
            "http": Http(
                BodyLimit(BareHandler(), budget, max_bytes=4 << 20),
                BodyLimit(get_asgi_application(), budget, max_bytes=4 << 20),
            ),
            "websocket": AuthMiddlewareStack(URLRouter([path("v1/stream", stream)])),
        }
    )
    # Of a socket without this protocol asyncio doesn't know that it is TCP, and leaves Nagle's algorithm on, which
    # uvloop never does: the second part of a response then waits 40 ms until the client acknowledges the first.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=HttpProtocol, ws=WebSocketProtocol, log_level="warning", lifespan="off", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        await server.serve(sockets=[listener])
        if streams._hub is not None:
            await streams._hub.close()
        streams.set_hub(None)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < deadline and thread.is_alive(), "the server did not start"
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(60)
    django_settings.BLAZR_REDIS_URL = old_url


@pytest.fixture
def worker(redis_server: RedisUrls, checkpoint: Any) -> Iterator[ScriptedWorker]:
    """A worker with a script for an engine, on the real broker and streams; it holds the test's checkpoint."""
    from tests.inference.api.scripted_worker import ScriptedWorker, say

    scripted = ScriptedWorker(redis_server.client)
    scripted.checkpoint_ids.add(str(checkpoint.pk))
    scripted.script = say("Hello", ", world")
    yield scripted
    scripted.stop()
