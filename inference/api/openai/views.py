"""Serve OpenAI's models, completions and chat completions."""

from __future__ import annotations

import functools
from typing import ClassVar

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes

from inference.api.base import ApiView, generation_body, json_response
from inference.api.event_stream import EventStream, output_format, queue_headers
from inference.api.openai.model_objects import model_object, model_objects
from inference.api.schemas import (
    GENERATION_ERRORS,
    ChatCompletionSerializer,
    CompletionSerializer,
    ModelDeletedSerializer,
    ModelListSerializer,
    ModelSerializer,
    documented,
)
from inference.dialects.openai.requests import ChatRequestSerializer, CompletionRequestSerializer, plan_from_body
from inference.errors import Conflict, NotFound
from inference.serving.generation import generation_start
from inference.values.plan import Endpoint
from models_registry.adapters import adapter_remove
from models_registry.aliases import alias_delete
from models_registry.selectors import adapter_key, checkpoint_get, checkpoint_get_by_name

_STREAM = (
    "With stream: true the response is text/event-stream: one chunk per data line, data: [DONE] at the end. "
    "Parameters that aren't listed are refused."
)


class GenerationView(ApiView):
    """Base of both generation views."""

    admits_itself = True
    endpoint: ClassVar[Endpoint]

    async def generate(self, request: HttpRequest) -> HttpResponseBase:
        """Validate the body and start the generation, then stream or wait for the whole response.

        When the client disconnects, Django cancels this task and thereby the generation.
        """
        read = functools.partial(plan_from_body, self.endpoint)
        plan = await generation_body(request, read, principal=self.principal, endpoint=self.endpoint)
        generation = await generation_start(plan=plan, principal=self.principal)
        if plan.stream:
            return EventStream(generation)
        await generation.wait()
        headers = {"x-request-id": generation.request_id, **queue_headers(generation)}
        return json_response(output_format(generation).whole(), headers=headers)


class CompletionsView(GenerationView):
    """POST /v1/completions."""

    endpoint = "completion"

    @documented(
        operation_id="completions_create",
        summary="Complete a prompt",
        description=_STREAM,
        request=CompletionRequestSerializer,
        responses={(200, "application/json"): CompletionSerializer, (200, "text/event-stream"): OpenApiTypes.ANY},
        errors=GENERATION_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Complete one or several prompts."""
        return await self.generate(request)


class ChatCompletionsView(GenerationView):
    """POST /v1/chat/completions."""

    endpoint = "chat"

    @documented(
        operation_id="chat_completions_create",
        summary="Answer a conversation",
        description=_STREAM,
        request=ChatRequestSerializer,
        responses={(200, "application/json"): ChatCompletionSerializer, (200, "text/event-stream"): OpenApiTypes.ANY},
        errors=GENERATION_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Write the next message of a conversation."""
        return await self.generate(request)


class ModelsView(ApiView):
    """GET /v1/models."""

    @documented(
        operation_id="models_list",
        summary="List the served models",
        responses={200: ModelListSerializer},
        errors=(401, 503),
        tags=["v1"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """List all models by name."""
        return json_response({"object": "list", "data": await model_objects()})


class ModelView(ApiView):
    """GET /v1/models/{id}."""

    @documented(
        operation_id="models_retrieve",
        summary="One served model",
        responses={200: ModelSerializer},
        errors=(401, 404, 503),
        tags=["v1"],
    )
    async def get(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Return the model with this name."""
        return json_response(await model_object(name=model_id))

    @documented(
        operation_id="models_delete",
        summary="Delete an alias or a LoRA adapter",
        description="The checkpoints that it meant, and the adapter's files, stay; a checkpoint is deleted on its page "
        "or with /api/delete.",
        responses={200: ModelDeletedSerializer},
        errors=(401, 403, 404, 409, 503),
        tags=["v1"],
    )
    async def delete(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Delete an alias and its revisions, or take an adapter out of the registry."""
        self.principal.check_model(model_id)
        await sync_to_async(_delete_name)(model_id)
        return json_response({"id": model_id, "object": "model", "deleted": True})


def _delete_name(name: str) -> None:
    if alias_delete(name=name):
        return
    adapter = adapter_key(name)
    if adapter is not None:
        adapter_remove(checkpoint=checkpoint_get(adapter[0]), adapter_id=adapter[1])
    else:
        checkpoint_get_by_name(name)
        raise Conflict(f"{name!r} is a checkpoint, not an alias; delete it on its page or with /api/delete.")


class UnknownEndpointView(ApiView):
    """Any other path below /v1: an error object in place of a page."""

    schema = None
    public = True

    async def get(self, request: HttpRequest, rest: str) -> HttpResponseBase:
        """Refuse the request with 404.

        Raises:
            NotFound: Always.
        """
        raise NotFound(f"There is no endpoint {request.method} {request.path[:200]}.")

    post = put = patch = delete = head = get
