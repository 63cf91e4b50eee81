"""Track every Celery message from its delivery to its acknowledgement.

A message is started at most once and acknowledged exactly once, together with the last event of its request. A
redelivered request continues after the tokens that its client already has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError, EngineError, Unavailable
from inference.records.tracing import is_tracing, worker_trace
from inference.transport.control import CancelledRequests
from inference.transport.publisher import Acknowledgement, EventPublisher
from inference.transport.redis_time import redis_now_estimated
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.worker.lease import LeaseKeeper, hand_back
from inference.worker.model_manager import ModelManager
from inference.worker.resume import Resumer, Resumption

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Delivery:
    """One unacknowledged message.

    Attributes:
        tags: Delivery tags of the message: one, and one more for each repeated delivery.
        acknowledge: Celery's callbacks, one for each tag.
    """

    message: GenerateMessage
    tags: list[str]
    acknowledge: list[Callable[[], None]]
    delivered_at: float = field(default_factory=time.monotonic)


class Deliveries:
    """The messages of this worker that have not ended; all methods are thread-safe.

    Args:
        client: Redis client, for attempt counts and queries to web processes.
        worker_id: The worker's id.
        manager: Runs the requests.
        publisher: Sends events and acknowledgements.
        leases: Renews the leases on the messages.
        cancelled: Ids of cancelled requests, also of requests that aren't delivered yet.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker_id: str,
        *,
        manager: ModelManager,
        publisher: EventPublisher,
        leases: LeaseKeeper,
        cancelled: CancelledRequests,
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._manager = manager
        self._publisher = publisher
        self._leases = leases
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._deliveries: dict[str, _Delivery] = {}
        self._is_closed = False
        self._resumer = Resumer(client)
        self._resumer.start()

    def deliver(
        self,
        message: GenerateMessage,
        *,
        tag: str,
        redelivered: bool,
        acknowledge: Callable[[], None],
    ) -> None:
        """Take one message; return quickly, because Celery's event loop waits.

        The request starts once its message is recorded as this worker's, so that every crash counts.

        Args:
            tag: Delivery tag of the message. The lease renews the tag; the end of the request acknowledges the tag.
            redelivered: Whether another worker had the message before.
            acknowledge: Called once, when the request has ended.
        """
        request_id = message["request_id"]
        with self._lock:
            if self._is_closed:
                self._leases.hold(tag, request_id)  # the message goes back with the others
                return
            running = self._deliveries.get(request_id)
            if running is not None:
                # An expired lease has caused a second delivery of the message; both deliveries end together.
                running.acknowledge.append(acknowledge)
                if tag not in running.tags:
                    running.tags.append(tag)
                self._leases.hold(tag, request_id)
                return
            delivery = self._deliveries[request_id] = _Delivery(message, [tag], [acknowledge])
        if request_id in self._cancelled:
            self._drop(request_id)
        elif message["deadline"] < redis_now_estimated():
            self._fail(delivery, Unavailable("The request waited past its deadline; try again later.", retry_after_s=5))
        elif redelivered:
            self._leases.hold(tag, request_id)
            self._resumer.resume(message, partial(self._resumed, delivery))
        else:
            self._leases.hold(tag, request_id, then=partial(self._submit, delivery))

    def cancel(self, request_id: str) -> None:
        """End a request early; unknown ids are ignored."""
        self._manager.cancel(request_id)

    def cancel_of_web(self, web_id: str) -> None:
        """Cancel every request of a web process that has died."""
        with self._lock:
            lost = [key for key, delivery in self._deliveries.items() if delivery.message["web_id"] == web_id]
        for request_id in lost:
            self._manager.cancel(request_id)

    def web_ids(self) -> list[str]:
        """Return the web process of each unacknowledged message."""
        with self._lock:
            return [delivery.message["web_id"] for delivery in self._deliveries.values()]

    def hand_back(self) -> None:
        """Put messages that have not ended back into their queues; this worker stops."""
        with self._lock:
            unfinished, self._deliveries = self._deliveries, {}
        tags = [tag for delivery in unfinished.values() for tag in delivery.tags]
        if not tags:
            return
        self._leases.release(tags)
        try:
            hand_back(self._client, self._worker_id, tags)
            logger.info("%d requests were returned to their queues", len(tags))
        except (RedisError, OSError) as error:
            logger.warning("requests could not be handed back (%s); their leases expire", error)

    def close(self) -> None:
        """Forget all unfinished messages, and start no further ones; this worker has crashed."""
        with self._lock:
            self._is_closed = True
            self._deliveries = {}

    def stop(self) -> None:
        """End the thread that resumes requests."""
        self._resumer.stop()

    # --- the start of a request

    def _submit(self, delivery: _Delivery) -> None:
        request_id = delivery.message["request_id"]
        if self._deliveries.get(request_id) is not delivery:
            return  # ended or handed back meanwhile
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
        """Continue a redelivered request after the tokens that its client has."""
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
            self._leases.hold(delivery.tags[0], message["request_id"], then=partial(self._submit, delivery))

    # --- events and the end of a request

    def _send(self, events: list[GenerationEvent]) -> None:
        """Send events to their web processes; the last event of a request acknowledges its message."""
        addressed: list[tuple[str, GenerationEvent]] = []
        ended: list[Acknowledgement] = []
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
                ended.append(self._acknowledgement(delivery))
        self._publisher.publish(addressed, ended)

    def _fail(self, delivery: _Delivery, error: BlazrError) -> None:
        """End a request that never reached an engine with an error event."""
        message = delivery.message
        self._send(
            [
                {
                    "request_id": message["request_id"],
                    "attempt": message["attempt"],
                    "index": 0,
                    "type": "error",
                    "error": error.to_dict(),
                }
            ]
        )

    def _drop(self, request_id: str) -> None:
        """Acknowledge a message without an event, because no client waits for one."""
        delivery = self._remove(request_id)
        if delivery is not None:
            self._publisher.publish([], [self._acknowledgement(delivery)])

    def _remove(self, request_id: str) -> _Delivery | None:
        """Remove and return a delivery; None: the request has ended, or its message was handed back."""
        with self._lock:
            return self._deliveries.pop(request_id, None)

    def _acknowledgement(self, delivery: _Delivery) -> Acknowledgement:
        def acknowledge() -> None:
            self._leases.release(delivery.tags)
            for callback in delivery.acknowledge:
                callback()

        message = delivery.message
        return Acknowledgement(message["request_id"], message["model"], tuple(delivery.tags), acknowledge)
