"""Serve /v1/messages and /v1/messages/count_tokens, with errors in Anthropic's shape."""

from __future__ import annotations

import orjson
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes

from inference.access.admission import admitted
from inference.api.anthropic.running import API_NAME, RunningMessage, running_message
from inference.api.anthropic.schemas import MessageResponseSerializer, TokenCountSerializer, documented_message
from inference.api.base import ApiView, generation_body, json_body, json_response, read_further
from inference.api.event_stream import EventStream, queue_headers
from inference.api.exception_handler import as_blazr_error, error_response
from inference.dialects.anthropic.events import message_error
from inference.dialects.anthropic.serializers import (
    CHAT_NAMES,
    CountTokensRequestSerializer,
    MessageRequestSerializer,
)
from inference.dialects.chat_bridge import chat_plan, translate_error
from inference.errors import InvalidRequest
from inference.serving.tokenizers import prompt_tokens
from inference.values.limits import estimate_prompt_tokens

VERSIONS = ("2023-06-01", "2026-10-21")
"""Accepted versions; blazr treats their differences alike (https://platform.claude.com/docs/en/api/versioning)."""
_ERRORS = (400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503)


class AnthropicView(ApiView):
    """Base of both views."""

    def error_response(self, error: Exception) -> HttpResponse:
        """Return the error in Anthropic's shape, with the same status and headers as elsewhere."""
        known = translate_error(as_blazr_error(error), CHAT_NAMES)
        response = error_response(known)
        response.content = orjson.dumps(message_error(known))
        return response


class MessagesView(AnthropicView):
    """POST /v1/messages."""

    admits_itself = True

    @documented_message(
        operation_id="messages_create",
        summary="Write the next message (Anthropic's API)",
        description=(
            "With stream: true the response is text/event-stream: Anthropic's typed events. "
            "Parameters that aren't listed are refused."
        ),
        request=MessageRequestSerializer,
        responses={(200, "application/json"): MessageResponseSerializer, (200, "text/event-stream"): OpenApiTypes.ANY},
        errors=_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Generate the next message of a conversation."""
        check_version(request)
        read = MessageRequestSerializer.shared().plan
        plan, stream = await generation_body(request, read, principal=self.principal, endpoint=API_NAME.name)
        running: RunningMessage = await running_message(plan, self.principal)
        request_id = running.generation.request_id
        if stream:
            response = EventStream(running.generation, running)
            response["request-id"] = request_id
            return response
        body = await running.whole()
        headers = {"x-request-id": request_id, "request-id": request_id, **queue_headers(running.generation)}
        return json_response(body, headers=headers)


class CountTokensView(AnthropicView):
    """POST /v1/messages/count_tokens."""

    admits_itself = True

    @documented_message(
        operation_id="messages_count_tokens",
        summary="Count the tokens of a conversation (Anthropic's API)",
        request=CountTokensRequestSerializer,
        responses={200: TokenCountSerializer},
        errors=_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Return the number of prompt tokens of a request, without generating."""
        check_version(request)
        body = await json_body(request, CountTokensRequestSerializer.shared().chat_body)
        plan = await read_further(request, lambda: chat_plan(body, CHAT_NAMES))
        async with admitted(self.principal, tokens=estimate_prompt_tokens(plan)):
            num_tokens, _ = await prompt_tokens(plan)
        return json_response({"input_tokens": num_tokens})


def check_version(request: HttpRequest) -> None:
    """Refuse an unknown version of Anthropic's API; a missing header is accepted.

    Raises:
        InvalidRequest: The header names an unknown version.
    """
    version = request.headers.get("anthropic-version")
    if version is not None and version not in VERSIONS:
        raise InvalidRequest(
            f"anthropic-version: {version[:40]!r} is not known; there are {', '.join(VERSIONS)}.",
            param="anthropic-version",
        )
