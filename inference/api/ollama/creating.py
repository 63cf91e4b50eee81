"""Serve POST /api/create, and HEAD and POST /api/blobs/DIGEST: models made of files that a client has sent.

Protocol: https://github.com/ollama/ollama/blob/main/docs/api.md#create-a-model and #push-a-blob.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import IO, Any, cast

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes

from inference.api.base import json_body, json_response
from inference.api.ollama import schemas
from inference.api.ollama.base import LATEST, OllamaView, ProgressLines, served_by_ollama_name
from inference.api.schemas import GENERATION_ERRORS
from inference.dialects.ollama.serializers import OllamaCreateRequestSerializer, OptionsSerializer
from inference.errors import InvalidRequest
from inference.serving.served_models import checkpoint_key_of
from models_registry.creations import Creation, creation_begin, creation_finish
from models_registry.received_blobs import blob_hold, blob_receive, digest_of
from models_registry.selectors import checkpoint_get


class BlobView(OllamaView):
    """HEAD and POST /api/blobs/DIGEST."""

    @schemas.documented(
        operation_id="ollama_blob_exists",
        summary="Whether the server has a file",
        responses={200: None},
        errors=(400, 401, 403, 404),
    )
    async def head(self, request: HttpRequest, digest: str) -> HttpResponseBase:
        """Return 200 if the file is here, and keep it for an hour."""
        await asyncio.to_thread(blob_hold, digest_of(digest))
        return HttpResponse(status=200)

    @schemas.documented(
        operation_id="ollama_blob_create",
        summary="Send a file for /api/create",
        description="The body is the file. It is kept for an hour, and longer once a model is made of it.",
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={201: None},
        errors=(400, 401, 403, 413, 422, 507),
    )
    async def post(self, request: HttpRequest, digest: str) -> HttpResponseBase:
        """Store the body if its SHA-256 is the digest."""
        declared = int(request.META.get("CONTENT_LENGTH") or 0)
        await asyncio.to_thread(blob_receive, digest_of(digest), cast("IO[bytes]", request), declared)
        return HttpResponse(status=201)


class CreateView(OllamaView):
    """POST /api/create."""

    @schemas.documented(
        operation_id="ollama_create",
        summary="Make a model of files, or of another model",
        description=(
            "files have names and digests of blobs that were sent before; from names a model of the registry. A "
            "stream of JSON lines unless stream is false."
        ),
        request=OllamaCreateRequestSerializer,
        responses={
            (200, "application/json"): schemas.PulledSerializer,
            (200, "application/x-ndjson"): OpenApiTypes.STR,
        },
        errors=GENERATION_ERRORS,
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Check, inspect, register."""
        values = await json_body(request, _parse)
        creation = await _creation(values)
        # What is refused without reading a file gets an HTTP status; a later error is a line of the stream.
        upload_id = await sync_to_async(creation_begin)(creation)
        finishing = asyncio.ensure_future(sync_to_async(creation_finish)(creation, upload_id))
        if not values.get("stream", True):
            await asyncio.shield(finishing)
            return json_response({"status": "success"})
        return ProgressLines(_progress(finishing))


async def _progress(finishing: asyncio.Future[Any]) -> AsyncGenerator[dict[str, Any], None]:
    yield {"status": "inspecting"}
    row = await asyncio.shield(finishing)  # a client that leaves doesn't leave half a model
    yield {"status": f"registered as {row.served_model_name}"}
    yield {"status": "success"}


def _parse(body: object) -> dict[str, Any]:
    values = OllamaCreateRequestSerializer.shared().parse(body)
    OptionsSerializer.shared().parse(values.get("parameters", {}))
    return values


async def _creation(values: dict[str, Any]) -> Creation:
    serializer = OllamaCreateRequestSerializer.shared()
    source = None
    if values.get("from"):
        served = await served_by_ollama_name(values["from"])
        source = await sync_to_async(checkpoint_get)(checkpoint_key_of(served, param="from"))
    files = values.get("files") or {}
    wrong = next((name for name, digest in files.items() if not isinstance(digest, str)), None)
    if wrong is not None:
        raise InvalidRequest(f"files has no digest for {wrong[:80]!r}.", param="files")
    return Creation(
        name=serializer.model_name(values).removesuffix(LATEST),
        files={name: digest_of(digest) for name, digest in files.items()},
        source=source,
        template=values.get("template") or "",
        system=values.get("system") or "",
        parameters=values.get("parameters") or {},
        quantize=values.get("quantize") or "",
    )
