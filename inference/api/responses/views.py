"""Serve /v1/responses: create, stream, retrieve, cancel and delete responses, list their input."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

import orjson
from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from inference.access.admission import RequestExceedsLimit, admission_check, admitted, refusal_count
from inference.api.base import ApiView, json_body, json_response
from inference.api.event_stream import EventStream, queue_headers
from inference.api.responses.background import (
    OPEN_STATES,
    BackgroundResponse,
    background_check,
    background_of_key,
    background_submit,
    response_body,
    response_cancel,
)
from inference.api.responses.conversations import conversation, input_items, stored_chain, stored_turn
from inference.api.responses.following import STREAMS, FollowingStream
from inference.api.responses.reading import BYTES_READ, ReadResponse, hold_stored
from inference.api.responses.running import RunningResponse, running_response
from inference.api.responses.schemas import (
    InputTokensSerializer,
    ResponseDeletedSerializer,
    ResponseItemListSerializer,
    ResponseSerializer,
)
from inference.api.responses.truncation import fitted_plan
from inference.api.schemas import GENERATION_ERRORS, documented
from inference.dialects.chat_bridge import translate_error
from inference.dialects.responses.items import Item
from inference.dialects.responses.serializers import (
    CHAT_NAMES,
    InputTokensRequestSerializer,
    ResponseRequest,
    ResponseRequestSerializer,
)
from inference.errors import BlazrError, InvalidRequest, PermissionRefused, StorageFull, UnsupportedFeature
from inference.host.client_json import read_by_size
from inference.models import StoredResponse
from inference.records.stored_responses import response_delete, response_get
from inference.serving.grammar_checks import grammar_checks
from inference.serving.tokenizers import prompt_tokens
from inference.values.limits import estimate_prompt_tokens
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal

MAX_PAGE = 100
DEFAULT_PAGE = 20
_ORDERS = ("asc", "desc")
CANCEL_WAIT_S = 5.0
CANCEL_POLL_S = 0.1


class ResponsesView(ApiView):
    """POST /v1/responses."""

    admits_itself = True

    @documented(
        operation_id="responses_create",
        summary="Create a response",
        description=(
            "With stream: true the response is text/event-stream: typed events with sequence_number, "
            "response.completed (or incomplete, failed) last. Parameters that aren't listed are refused."
        ),
        request=ResponseRequestSerializer,
        responses={(200, "application/json"): ResponseSerializer, (200, "text/event-stream"): OpenApiTypes.ANY},
        errors=GENERATION_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Create a response to an input, optionally after an earlier response."""
        parsed = await json_body(request, ResponseRequestSerializer.shared().read)
        try:
            parsed, plan = await self._planned(request, parsed)
            if parsed.values.get("background", False):
                return await self._in_background(request, parsed, plan)
            running = await self._started(parsed, plan)
            if parsed.values.get("stream", False):
                return EventStream(running.generation, running)
            body = await running.whole()
        except BlazrError as error:
            raise translate_error(error, CHAT_NAMES) from None
        generation = running.generation
        return json_response(body, headers={"x-request-id": generation.request_id, **queue_headers(generation)})

    async def _planned(self, request: HttpRequest, parsed: ResponseRequest) -> tuple[ResponseRequest, GenerationPlan]:
        """Return the request, behind the state of its conversation, and its plan."""
        async with _with_history(parsed, self.principal) as (found, history, num_bytes):
            if _is_cut(found):
                await admission_check(self.principal)  # it tokenises the conversation several times
                return found, await fitted_plan(found, history)
            return found, await read_by_size(_declared_bytes(request) + num_bytes, lambda: found.plan(history))

    async def _started(self, parsed: ResponseRequest, plan: GenerationPlan) -> RunningResponse:
        try:
            return await running_response(parsed, plan, self.principal)
        except (PermissionRefused, RequestExceedsLimit, StorageFull):  # before it was counted
            if _is_cut(parsed):
                await refusal_count(self.principal, tokens=estimate_prompt_tokens(plan))
            raise

    async def _in_background(
        self, request: HttpRequest, parsed: ResponseRequest, plan: GenerationPlan
    ) -> HttpResponseBase:
        with ExitStack() as held:
            if is_streamed := parsed.values.get("stream", False):
                # Before the job: a client that is refused sends the request again.
                held.enter_context(STREAMS.hold(self.principal.tenant))
                held.enter_context(BYTES_READ.hold(self.principal.tenant, _declared_bytes(request)))
            row = await self._submitted(parsed, plan)
            if is_streamed:
                return FollowingStream(row, held.pop_all())
        return json_response(orjson.loads(row.body), headers={"x-request-id": row.response_id})

    async def _submitted(self, parsed: ResponseRequest, plan: GenerationPlan) -> StoredResponse:
        # Its tokens count when its job starts.
        async with admitted(self.principal, tokens=0):
            if self.request_key is not None:
                row = await sync_to_async(background_of_key)(request_key=self.request_key, principal=self.principal)
                if row is not None:
                    return row
            if plan.params.grammar is not None:
                # After the limits of the key: a refused request must cost no compilation.
                await sync_to_async(background_check)(self.principal)
                await grammar_checks().check(plan.params.grammar)
            return await sync_to_async(background_submit)(
                request=parsed, plan=plan, principal=self.principal, request_key=self.request_key
            )


class InputTokensView(ApiView):
    """POST /v1/responses/input_tokens."""

    admits_itself = True

    @documented(
        operation_id="responses_input_tokens",
        summary="Count the tokens of a response's prompt",
        request=InputTokensRequestSerializer,
        responses={200: InputTokensSerializer},
        errors=GENERATION_ERRORS,
        tags=["v1"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Return the number of prompt tokens of a request, without generating."""
        parsed = await json_body(request, InputTokensRequestSerializer.shared().read)
        try:
            async with _with_history(parsed, self.principal) as (found, history, num_bytes):
                if found.values.get("state") is not None:
                    raise UnsupportedFeature(
                        "previous_response_id: the conversation began behind a saved state, whose messages can't be "
                        "counted here; the usage of a response has the tokens.",
                        param="previous_response_id",
                    )
                plan = await read_by_size(_declared_bytes(request) + num_bytes, lambda: found.plan(history))
            async with admitted(self.principal, tokens=estimate_prompt_tokens(plan)):
                num_tokens, _ = await prompt_tokens(plan)
        except BlazrError as error:
            raise translate_error(error, CHAT_NAMES) from None
        return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})


@asynccontextmanager
async def _with_history(
    request: ResponseRequest, principal: Principal
) -> AsyncIterator[tuple[ResponseRequest, Sequence[Item], int]]:
    """Yield the request, behind the state of its conversation, the items of the earlier responses, and their bytes.

    The bytes count in ``BYTES_READ`` until the end of the block.
    """
    previous = request.values.get("previous_response_id")
    if previous is None:
        yield request, [], 0
        return
    turns = await sync_to_async(stored_chain)(response_id=previous, principal=principal)
    num_bytes = sum(turn.size_bytes for turn in turns)
    with BYTES_READ.hold(principal.tenant, num_bytes):
        found = await sync_to_async(conversation)(turns, principal)
        yield request.following(found.state), found.items, num_bytes


def _is_cut(request: ResponseRequest) -> bool:
    """Whether a conversation that is too long loses its oldest turns."""
    return bool(request.values.get("truncation", "disabled") == "auto")


def _declared_bytes(request: HttpRequest) -> int:
    return int(request.META.get("CONTENT_LENGTH") or 0)


class ResponseView(ApiView):
    """/v1/responses/{id}."""

    @documented(
        operation_id="responses_retrieve",
        summary="A stored response",
        description="A background response can be streamed, also after its end, and from any event on.",
        parameters=[
            OpenApiParameter("stream", bool, description="The events of a background response; default false."),
            OpenApiParameter("starting_after", int, description="Leave out the events up to this sequence_number."),
            OpenApiParameter("include_obfuscation", bool, description="Must be false."),
        ],
        responses={(200, "application/json"): ResponseSerializer, (200, "text/event-stream"): OpenApiTypes.ANY},
        errors=(400, 401, 404, 429, 503),
        tags=["v1"],
    )
    async def get(self, request: HttpRequest, response_id: str) -> HttpResponseBase:
        """Return the current response."""
        _check_query(request, ("stream", "starting_after", "include_obfuscation"))
        stream = _flag(request, "stream")
        after = request.GET.get("starting_after")
        if after is not None and not stream:
            raise InvalidRequest("starting_after only goes with stream=true.", param="starting_after")
        if _flag(request, "include_obfuscation"):
            raise UnsupportedFeature("include_obfuscation is not supported; leave it out.", param="include_obfuscation")
        starting_after = -1 if after is None else _number(after)
        with ExitStack() as held:
            held.enter_context(await hold_stored(response_id, self.principal))
            row = await sync_to_async(response_get)(response_id=response_id, principal=self.principal)
            if not stream:
                return ReadResponse(await sync_to_async(response_body)(row), held.pop_all())
            if row.job_id is None:
                raise InvalidRequest(
                    "Only responses with background: true can be streamed later; retrieve this one without stream.",
                    param="stream",
                )
            held.enter_context(STREAMS.hold(self.principal.tenant))
            return FollowingStream(row, held.pop_all(), starting_after=starting_after)

    @documented(
        operation_id="responses_delete",
        summary="Delete a stored response",
        responses={200: ResponseDeletedSerializer},
        errors=(401, 404, 429, 503),
        tags=["v1"],
    )
    async def delete(self, request: HttpRequest, response_id: str) -> HttpResponseBase:
        """Delete a response for ever."""
        with await hold_stored(response_id, self.principal):
            await sync_to_async(response_delete)(response_id=response_id, principal=self.principal)
        return json_response({"id": response_id, "object": "response", "deleted": True})


class ResponseCancelView(ApiView):
    """/v1/responses/{id}/cancel."""

    admits_itself = True

    @documented(
        operation_id="responses_cancel",
        summary="Stop a background response",
        description=f"Waits up to {CANCEL_WAIT_S:g} s for its worker to stop; one that is over stays as it is.",
        responses={200: ResponseSerializer},
        errors=(400, 401, 404, 429, 503),
        tags=["v1"],
    )
    async def post(self, request: HttpRequest, response_id: str) -> HttpResponseBase:
        """Cancel a response."""
        with ExitStack() as held:
            held.enter_context(await hold_stored(response_id, self.principal))
            row = await sync_to_async(response_cancel)(response_id=response_id, principal=self.principal)
            background = BackgroundResponse(row)
            deadline = time.monotonic() + CANCEL_WAIT_S
            while True:
                body = await sync_to_async(response_body)(row, background)
                if body["status"] not in OPEN_STATES or time.monotonic() >= deadline:
                    return ReadResponse(body, held.pop_all())
                await asyncio.sleep(CANCEL_POLL_S)


class ResponseInputItemsView(ApiView):
    """/v1/responses/{id}/input_items."""

    @documented(
        operation_id="responses_input_items",
        summary="The items that a response was made from",
        parameters=[
            OpenApiParameter("order", str, enum=list(_ORDERS), description="Default desc: newest first."),
            OpenApiParameter("after", str, description="Continue after the item with this id."),
            OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, default {DEFAULT_PAGE}."),
        ],
        responses={200: ResponseItemListSerializer},
        errors=(400, 401, 404, 429, 503),
        tags=["v1"],
    )
    async def get(self, request: HttpRequest, response_id: str) -> HttpResponseBase:
        """List the items of the earlier responses and of the response's own input."""
        _check_query(request, ("order", "after", "limit"))
        order, after = request.GET.get("order", "desc"), request.GET.get("after")
        if order not in _ORDERS:
            raise InvalidRequest(f"order is {order[:40]!r}; known are asc and desc.", param="order")
        limit = _page_size(request.GET.get("limit", str(DEFAULT_PAGE)))
        own = await sync_to_async(stored_turn)(response_id=response_id, principal=self.principal)
        earlier = await sync_to_async(stored_chain)(response_id=own.previous_id, principal=self.principal)
        with ExitStack() as held:
            num_bytes = sum(turn.size_bytes for turn in (own, *earlier))
            held.enter_context(BYTES_READ.hold(self.principal.tenant, num_bytes))
            page, has_more = await sync_to_async(input_items)(
                own, earlier, self.principal, is_descending=order == "desc", after=after, limit=limit
            )
            body = {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": has_more,
            }
            return ReadResponse(body, held.pop_all())


def _check_query(request: HttpRequest, known: tuple[str, ...]) -> None:
    for name in request.GET:
        if name not in known:
            raise UnsupportedFeature(f"{name[:80]!r} is not a parameter of this endpoint; remove it.", param=name[:80])


def _flag(request: HttpRequest, name: str) -> bool:
    text = request.GET.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name} is {text[:40]!r}, it must be true or false.", param=name)
    return text == "true"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise InvalidRequest(
            f"starting_after is {text[:40]!r}, it must be the sequence_number of an event.", param="starting_after"
        )
    return int(text)


def _page_size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= MAX_PAGE:
        raise InvalidRequest(f"limit is {text[:40]!r}, it must be from 1 to {MAX_PAGE}.", param="limit")
    return int(text)
