"""Run the generation of a message of Anthropic's API: streamed or whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inference.api.event_stream import output_format, sse_event
from inference.dialects.anthropic.events import Event, MessageEvents, message_error
from inference.dialects.anthropic.serializers import CHAT_NAMES
from inference.dialects.chat_bridge import event_pieces, translate_error
from inference.errors import BlazrError
from inference.serving.generation import ApiName, Generation, generation_start
from inference.values.messages import GenerationEvent
from inference.values.plan import GenerationPlan
from inference.values.principal import Principal
from inference.values.queue_place import QUEUE_EVENT, QueuePlace

API_NAME = ApiName("messages", "msg_")


class RunningMessage:
    """Follows ``generation``; also the ``StreamFormat`` of its stream."""

    heartbeat = sse_event("ping", {"type": "ping"})

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self._format = output_format(generation)
        self._events = MessageEvents(message_id=generation.request_id, model=generation.served.name)

    async def whole(self) -> dict[str, Any]:
        """Return the finished message.

        Raises:
            BlazrError: The generation failed.
        """
        await self.generation.wait(self._take)
        self._events.finished(self.generation.builder.usage())
        return self._events.message

    # --- as a stream ---------------------------------------------------------------------------

    def waiting(self, place: QueuePlace) -> bytes:
        """Return where the message stands in the queue, as an event of a name that clients pass over."""
        return _written([{"type": QUEUE_EVENT, "queue": place.to_dict()}])

    def opening(self) -> bytes:
        """Return the event with the message before its content."""
        return _written(self._events.started(prompt_tokens=self.generation.builder.prompt_tokens))

    def parts(self, number: int, event: GenerationEvent) -> bytes:
        """Return the blocks and deltas of one event."""
        return _written(self._take(number, event))

    async def closing(self) -> bytes:
        """Return the end of the last block and of the message."""
        return _written(self._events.finished(self.generation.builder.usage()))

    async def failure(self, error: BlazrError) -> bytes:
        """Return the error event, which is the last."""
        return _written([message_error(translate_error(error, CHAT_NAMES))])

    def _take(self, number: int, event: GenerationEvent) -> list[Event]:
        return [made for piece in event_pieces(self._format, number, event) for made in self._events.take(piece)]


async def running_message(plan: GenerationPlan, principal: Principal) -> RunningMessage:
    """Start the generation of a message.

    Raises:
        BlazrError: As ``generation_start`` raises.
    """
    return RunningMessage(await generation_start(plan=plan, principal=principal, api_name=API_NAME))


def _written(events: Iterable[Event]) -> bytes:
    return b"".join(sse_event(event["type"], event) for event in events)
