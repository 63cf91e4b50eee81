"""Serve the OpenAPI document at /schema and /openapi.json, and as a page at /docs.

A process beside the server builds both for the first request: here they would hold up the event loop, and take 10 MB
for as long as the server runs.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path

import orjson
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from inference.api.base import ApiView
from inference.errors import EngineError

_ROOT = Path(__file__).resolve().parents[1]
_CACHE = {"Cache-Control": "public, max-age=60"}
_PAGE_HEADERS = {
    **_CACHE,
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
}


@dataclass(frozen=True, slots=True)
class Docs:
    """The OpenAPI document as JSON, and the page that shows it as HTML."""

    openapi: bytes
    page: bytes


_building: asyncio.Task[Docs] | None = None


async def docs() -> Docs:
    """Return the documents, built once per process, because routes don't change at run time.

    Raises:
        EngineError: The process that builds them failed. The next call starts another.
    """
    global _building
    if _building is None:
        _building = asyncio.create_task(_build())
        _building.add_done_callback(_forget_failure)
    return await asyncio.shield(_building)  # others wait for it too


def _forget_failure(task: asyncio.Task[Docs]) -> None:
    global _building
    if task.cancelled() or task.exception() is not None:
        _building = None


async def _build() -> Docs:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "blazr_site.docs_child",
        stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, cwd=_ROOT,
    )  # fmt: skip
    output, _ = await process.communicate()
    if process.returncode:
        raise EngineError(
            f"the documents of the API could not be built (exit status {process.returncode}); the log says why."
        )
    made = orjson.loads(output)
    return Docs(openapi=made["openapi"].encode(), page=made["page"].encode())


class SchemaView(ApiView):
    """GET /schema, and /openapi.json, the path of other servers."""

    schema = None
    public = True

    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """The OpenAPI document as JSON."""
        return HttpResponse((await docs()).openapi, content_type="application/json", headers=_CACHE)


class DocsView(ApiView):
    """GET /docs."""

    schema = None
    public = True

    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return the document as a page."""
        return HttpResponse((await docs()).page, headers=_PAGE_HEADERS)
