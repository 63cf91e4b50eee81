"""Define the ASGI application: API, pages, WebSockets, and start and end of the stream hub."""

# The data directory and Django must be ready before modules that use models are imported.
# ruff: noqa: E402

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from blazr_site.process_environment import use_settings

use_settings()

from blazr_site.settings.storage import prepare_data_dir

prepare_data_dir()

import django

django.setup()

from channels.auth import AuthMiddlewareStack
from channels.db import database_sync_to_async
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import DatabaseError
from django.urls import get_resolver, path, re_path

from blazr_site.bare_handler import BareHandler
from blazr_site.body_budget import BodyBudget
from blazr_site.body_limit import BodyLimit
from blazr_site.origin import SameOrigin
from blazr_site.routes import is_bare, route_or_none
from inference.consumers import StreamConsumer
from inference.host.loop_watch import watch_loop
from inference.host.machine import freeze_objects
from inference.pages.live import ConsoleConsumer
from inference.records.metrics import LOOP_BLOCKED
from inference.records.tracing import RequestSpan, is_tracing, tracing_start, tracing_stop
from inference.transport.hub import get_hub
from models_registry.pull_jobs import pulls_resume

logger = logging.getLogger(__name__)

TRACED_PREFIXES = ("/v1/", "/api/", "/tokenize", "/detokenize", "/infill", "/apply-template")


class Http:
    """Finds the route of a request once; views of the API without sessions run without the pages' middleware.

    ``scope["route"]`` is the route; None: there is none.
    """

    def __init__(self, api: Any, pages: Any) -> None:
        self._api = api
        self._pages = pages

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        scope["route"] = route = route_or_none(scope["path"])
        app = self._api if is_bare(route) else self._pages
        if is_tracing() and scope["path"].startswith(TRACED_PREFIXES):
            await _serve_traced(app, scope, receive, send)
        else:
            await app(scope, receive, send)


async def _serve_traced(app: Any, scope: Any, receive: Any, send: Any) -> None:
    with RequestSpan(scope) as span:

        async def watched(message: Any) -> None:
            if message["type"] == "http.response.start":
                span.record_status(message["status"])
            await send(message)

        await app(scope, receive, watched)


def resume_pulls() -> None:
    """Go on with the pulls of a web process that died; a database that isn't there leaves them to the next start."""
    try:
        pulls_resume()
    except DatabaseError as error:
        logger.warning("pulls can't be gone on with: %s", error)


class Lifespan:
    """Starts the hub with the server and ends it after the last connection."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve ASGI's lifespan protocol."""
        watch = asyncio.create_task(watch_loop(LOOP_BLOCKED.observe))
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if settings.BLAZR_TRACES_ENDPOINT:
                    tracing_start(service="blazr-web")
                await get_hub().start()
                await database_sync_to_async(resume_pulls)()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                watch.cancel()
                await get_hub().close()
                tracing_stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def refuse_socket(scope: Any, receive: Any, send: Any) -> None:
    """Refuse a WebSocket on a path that has none, before the handshake: the client gets a 403."""
    await receive()
    await send({"type": "websocket.close"})


_max_bytes = settings.BLAZR_MAX_BODY_BYTES
_budget, _running = (BodyBudget(total_bytes=8 * _max_bytes, caller_bytes=4 * _max_bytes) for _ in range(2))
SOCKETS = [
    path("v1/stream", StreamConsumer.as_asgi(arriving=_budget, running=_running)),
    path("console/live", ConsoleConsumer.as_asgi()),
    re_path("", cast("Any", refuse_socket)),  # Channels would log a traceback for each handshake
]

application = ProtocolTypeRouter(
    {
        "http": Http(
            BodyLimit(cast("Any", BareHandler()), _budget, max_bytes=_max_bytes),
            BodyLimit(cast("Any", get_asgi_application()), _budget, max_bytes=_max_bytes),
        ),
        "websocket": SameOrigin(AuthMiddlewareStack(URLRouter(SOCKETS))),
        "lifespan": Lifespan(),
    }
)

# Now, and not in the first request: the import of the views.
_ = get_resolver().url_patterns
freeze_objects()
