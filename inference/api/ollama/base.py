"""What Ollama's endpoints have in common: their errors, their names of models, their lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
from asgiref.sync import sync_to_async
from django.http import HttpResponse

from inference.api.base import ApiView
from inference.api.event_stream import EventStream, StreamFormat
from inference.api.exception_handler import as_blazr_error, error_response
from inference.errors import InvalidRequest, UnknownModel
from inference.serving.generation import ApiName, Generation
from inference.serving.served_models import served_model_get
from inference.values.served_model import ServedModel
from models_registry.hub import is_hub_id
from models_registry.selectors import checkpoint_list

API_NAME = ApiName("ollama", "ollama-")
LATEST = ":latest"
_HUB_HOSTS = ("hf.co/", "huggingface.co/")


class OllamaView(ApiView):
    """A view whose errors are ``{"error": "…"}``."""

    def error_response(self, error: Exception) -> HttpResponse:
        """Ollama's shape, with our status and headers."""
        known = as_blazr_error(error)
        response = error_response(known)
        response.content = orjson.dumps({"error": known.message})
        return response


class LineStream(EventStream):
    """A generation as lines of JSON."""

    def __init__(self, generation: Generation, stream: StreamFormat) -> None:
        super().__init__(generation, stream)
        self["Content-Type"] = "application/x-ndjson"


async def served_by_ollama_name(name: str) -> ServedModel:
    """The model that a client means: Ollama's clients add ``:latest`` to names without a tag.

    A hub's id (``hf.co/ORG/NAME``) means the last checkpoint that was pulled from there.

    Raises:
        UnknownModel: There is none.
    """
    if "/" in name:
        name = await sync_to_async(_pulled_name)(name) or name
    if name.endswith(LATEST):
        try:
            return await served_model_get(name=name)
        except UnknownModel:
            name = name.removesuffix(LATEST)
    return await served_model_get(name=name)


def hub_id(name: str) -> str:
    """``ORG/NAME`` of a name as Ollama's clients write it.

    Raises:
        InvalidRequest: It has a tag, or isn't a hub's id.
    """
    found = name.removesuffix(LATEST)
    for host in _HUB_HOSTS:
        found = found.removeprefix(host)
    if ":" in found:
        raise InvalidRequest(
            f"model {name[:120]!r} has a tag; tags choose among GGUF files, which aren't read. Send hf.co/ORG/NAME.",
            param="model",
        )
    if not is_hub_id(found):
        raise InvalidRequest(
            f"model {name[:120]!r} is not an id of the HuggingFace hub; they look like hf.co/ORG/NAME.", param="model"
        )
    return found


def _pulled_name(name: str) -> str | None:
    try:
        origin = hub_id(name)
    except InvalidRequest:
        return None
    row = checkpoint_list().filter(source="hub", origin=origin).order_by("-created_at").first()
    return None if row is None else row.served_model_name


def line(payload: Any) -> bytes:
    """One line of a stream."""
    return orjson.dumps(payload) + b"\n"


def now() -> str:
    """The time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Durations are whole nanoseconds."""
    return round(seconds * 1e9)
