"""Run the generation of a response, streamed or whole, and store the response at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from asgiref.sync import sync_to_async

from inference.api.event_stream import output_format, sse_event
from inference.api.exception_handler import as_blazr_error
from inference.dialects.chat_bridge import event_pieces, translate_error
from inference.dialects.responses.events import Event, ResponseEvents, response_error
from inference.dialects.responses.serializers import CHAT_NAMES, ResponseRequest
from inference.errors import BlazrError
from inference.records.stored_responses import response_bytes_check, response_store
from inference.serving.generation import ApiName, Generation, generation_start
from inference.values.messages import GenerationEvent
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal
from inference.values.queue_place import QueuePlace

API_NAME = ApiName("responses", "resp_")


class RunningResponse:
    """Follows ``generation``; also the ``StreamFormat`` of its stream.

    Args:
        generation: A started generation.
        request: The validated body.
        principal: The caller.
    """

    heartbeat = b": keep-alive\n\n"

    def __init__(self, generation: Generation, request: ResponseRequest, principal: Principal) -> None:
        self.generation = generation
        self._format = output_format(generation)
        self._request = request
        self._principal = principal
        self._events = ResponseEvents(
            request.skeleton(
                generation.plan,
                response_id=generation.request_id,
                created=generation.created,
                model=generation.served.name,
            ),
            returns_reasoning=request.returns_reasoning,
        )

    async def whole(self) -> dict[str, Any]:
        """Return the finished response.

        Raises:
            BlazrError: The generation failed.
        """
        self._events.started()
        await self.generation.wait(self._take)
        self._events.finished(usage=self.generation.builder.usage(), now=int(time.time()))
        await self._store()
        return self._events.response

    # --- as a stream ---------------------------------------------------------------------------

    def waiting(self, place: QueuePlace) -> bytes:
        """Return where the response stands in the queue; the first time behind created and queued."""
        return _written(self._events.waiting(place.to_dict()))

    def opening(self) -> bytes:
        """Return the events created and in_progress."""
        return _written(self._events.started())

    def parts(self, number: int, event: GenerationEvent) -> bytes:
        """Return the items and deltas of one event."""
        return _written(self._take(number, event))

    async def closing(self) -> bytes:
        """Store the response; return the end of the items and of the response."""
        events = self._events.finished(usage=self.generation.builder.usage(), now=int(time.time()))
        try:
            await self._store()
        except Exception as error:
            # A response that wasn't stored must not be reported as completed, nor be kept under an idempotency key.
            known = as_blazr_error(error)
            self.generation.outcome = known.code
            failed = {"status": "failed", "error": response_error(known)}
            events[-1] |= {"type": "response.failed", "response": self._events.response | failed}
        return _written(events)

    async def failure(self, error: BlazrError) -> bytes:
        """Return the last event of a failed response."""
        events = self._events.failed(translate_error(error, CHAT_NAMES))
        # Best effort, because the failure itself may be an unavailable database.
        with contextlib.suppress(Exception):
            await self._store()
        return _written(events)

    def _take(self, number: int, event: GenerationEvent) -> list[Event]:
        return [made for piece in event_pieces(self._format, number, event) for made in self._events.take(piece)]

    async def _store(self) -> None:
        if self._events.response["store"]:
            await sync_to_async(response_store)(
                body=self._events.response, items=self._request.items, principal=self._principal
            )


async def running_response(request: ResponseRequest, plan: GenerationPlan, principal: Principal) -> RunningResponse:
    """Start the generation of a request.

    Args:
        request: The validated body.
        plan: The plan of the request.
        principal: The caller.

    Raises:
        StorageFull: It is to be stored, and the stored responses have reached their limit.
        BlazrError: As ``generation_start`` raises.
    """
    if request.values.get("store", True):
        await sync_to_async(response_bytes_check)(principal)
    generation = await generation_start(plan=plan, principal=principal, api_name=API_NAME)
    return RunningResponse(generation, request, principal)


def _written(events: Iterable[Event]) -> bytes:
    return b"".join(sse_event(event["type"], event) for event in events)
