"""Track every message from its delivery to the end of its request.

A request is started at most once per delivery, and its message ends exactly once, together with its last event. A
request that another worker had before continues after the tokens that its client already has.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import orjson
import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError, EngineError, Unavailable
from inference.records.tracing import is_tracing, worker_trace
from inference.transport.control import CancelledRequests
from inference.transport.held_messages import return_messages
from inference.transport.publisher import EventPublisher
from inference.transport.redis_time import redis_now_estimated
from inference.values.messages import GenerateMessage, GenerationEvent, error_event
from inference.worker.model_manager import ModelManager
from inference.worker.resume import Resumer, Resumption

logger = logging.getLogger(__name__)

_NEEDED = {"request_id", "web_id", "attempt", "model", "prompt", "params", "priority", "deadline"}
"""Members that every message of this version has."""


@dataclass(eq=False, slots=True)
class _Delivery:
    """One message whose request has not ended."""

    message: GenerateMessage
    delivered_at: float = field(default_factory=time.monotonic)


class Deliveries:
    """The messages of this worker that have not ended; all methods are thread-safe.

    Args:
        client: Redis client, for attempt counts and queries to web processes.
        worker_id: The worker's id.
        manager: Runs the requests.
        publisher: Sends events, and records the ends of requests.
        cancelled: Ids of cancelled requests, also of requests that aren't delivered yet.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker_id: str,
        *,
        manager: ModelManager,
        publisher: EventPublisher,
        cancelled: CancelledRequests,
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._manager = manager
        self._publisher = publisher
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._deliveries: dict[str, _Delivery] = {}
        self._is_closed = self._is_stopped = False
        self._resumer = Resumer(client)
        self._resumer.start()

    def deliver(self, request_id: str, body: bytes, had_before: bool) -> None:
        """Take one message that is recorded as this worker's; return quickly, because the intake waits.

        Args:
            request_id: The id of the request.
            body: The message as JSON.
            had_before: Whether a worker had the message before.
        """
        members = _parse(body)
        if not members.keys() >= _NEEDED:
            self._refuse(request_id, body)
            return
        try:
            self._begin(request_id, cast("GenerateMessage", members), had_before=had_before)
        except Exception:  # of a member's type: nothing has started
            logger.exception("request %s could not be started", request_id)
            with self._lock:
                self._deliveries.pop(request_id, None)
            self._refuse(request_id, body)

    def _begin(self, request_id: str, message: GenerateMessage, *, had_before: bool) -> None:
        with self._lock:
            if self._is_closed or request_id in self._deliveries:
                return  # the message goes back with the others; or Redis has forgotten it, and got it again
            delivery = self._deliveries[request_id] = _Delivery(message)
        if request_id in self._cancelled:
            self._drop(request_id)
        elif message["deadline"] < redis_now_estimated():
            self._fail(delivery, Unavailable("The request waited past its deadline; try again later.", retry_after_s=5))
        elif had_before:
            self._resumer.resume(message, partial(self._resumed, delivery))
        else:
            self._submit(delivery)

    def cancel_of_web(self, web_id: str) -> None:
        """Cancel every request of a web process that has died."""
        with self._lock:
            lost = [key for key, delivery in self._deliveries.items() if delivery.message["web_id"] == web_id]
        for request_id in lost:
            self._manager.cancel(request_id)

    def web_ids(self) -> list[str]:
        """Return the web process of each message."""
        with self._lock:
            return [delivery.message["web_id"] for delivery in self._deliveries.values()]

    def return_messages(self) -> None:
        """Put messages that have not ended back into their queues; this worker stops."""
        with self._lock:
            unfinished, self._deliveries = self._deliveries, {}
        if not unfinished:
            return
        try:
            return_messages(self._client, self._worker_id, unfinished)
            logger.info("%d requests were returned to their queues", len(unfinished))
        except (RedisError, OSError) as error:
            logger.warning("requests could not be handed back (%s); peers return them", error)

    def close(self) -> None:
        """Forget all unfinished messages, and start no further ones; this worker has crashed."""
        with self._lock:
            self._is_closed = True
            self._deliveries = {}

    def stop(self) -> None:
        """Start no further request: those that haven't started are handed back with ``return_messages``."""
        self._is_stopped = True
        self._resumer.stop()

    # --- the start of a request

    def _submit(self, delivery: _Delivery) -> None:
        request_id = delivery.message["request_id"]
        if self._is_stopped or self._deliveries.get(request_id) is not delivery:
            return  # it goes back with the others; or it has ended, or was handed back meanwhile
        try:
            self._manager.submit(delivery.message, self._send)
        except Exception:
            logger.exception("request %s could not be submitted", request_id)
            self._fail(delivery, EngineError("The request could not be started because of an internal error."))
            return
        if request_id in self._cancelled:
            # The cancellation came between the check and the submit, when the manager didn't know the request.
            self._manager.cancel(request_id)

    def _resumed(self, delivery: _Delivery, resumption: Resumption) -> None:
        """Continue a request that another worker had, after the tokens that its client has."""
        message = delivery.message
        message["attempt"] = resumption.attempt
        if resumption.error is not None:
            self._fail(delivery, resumption.error)
        elif resumption.delivered is None:
            self._drop(message["request_id"])
        else:
            message["delivered"] = resumption.delivered
            if resumption.alone_tokens is not None:
                message["alone_tokens"] = resumption.alone_tokens
            self._submit(delivery)

    # --- events and the end of a request

    def _send(self, events: list[GenerationEvent]) -> None:
        """Send events to their web processes; the last event of a request ends its message."""
        addressed: list[tuple[str, GenerationEvent]] = []
        ended: list[str] = []
        for event in events:
            request_id = event["request_id"]
            is_last = event["type"] in ("done", "error")
            delivery = self._remove(request_id) if is_last else self._deliveries.get(request_id)
            if delivery is None:
                continue
            addressed.append((delivery.message["web_id"], event))
            if is_last:
                if is_tracing():
                    worker_trace(delivery.message, event, delivered_at=delivery.delivered_at)
                ended.append(request_id)
        self._publisher.publish(addressed, ended)

    def _fail(self, delivery: _Delivery, error: BlazrError) -> None:
        """End a request that never reached an engine with an error event."""
        message = delivery.message
        self._send([error_event(message["request_id"], message["attempt"], 0, error)])

    def _drop(self, request_id: str) -> None:
        """End a message without an event, because no client waits for one."""
        if self._remove(request_id) is not None:
            self._publisher.publish([], [request_id])

    def _remove(self, request_id: str) -> _Delivery | None:
        """Remove and return a delivery; None: the request has ended, or its message was handed back."""
        with self._lock:
            return self._deliveries.pop(request_id, None)

    def _refuse(self, request_id: str, body: bytes) -> None:
        """End a request whose message can't be read; with an error event, if the message names its web process."""
        logger.error("the message of request %s (%d bytes) isn't of this version, it is refused", request_id, len(body))
        error = Unavailable("The worker is of another version and can't read the request; try again.", retry_after_s=5)
        event = error_event(request_id, 0, 0, error)
        web_id = _parse(body).get("web_id")
        self._publisher.publish([(web_id, event)] if isinstance(web_id, str) else [], [request_id])


def _parse(body: bytes) -> dict[str, Any]:
    """Return the members of a message; none if it isn't a JSON object."""
    try:
        found = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
