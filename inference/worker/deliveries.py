"""Track every Celery message from its delivery to its acknowledgement.

A message is started at most once and acknowledged exactly once, together with the last event of its request. A
redelivered request continues after the tokens that its client already has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError, EngineError, GenerationFailed, Unavailable
from inference.records.tracing import is_tracing, worker_trace
from inference.transport import keys as redis_keys
from inference.transport.control import CancelledRequests
from inference.transport.publisher import Acknowledgement, EventPublisher
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.worker.lease import LeaseKeeper, hand_back
from inference.worker.model_manager import ModelManager

logger = logging.getLogger(__name__)

MAX_SUSPECT_DELIVERIES = 2
RESUME_THREADS = 4
RESUME_TIMEOUT_S = 5
RESUME_TRIES = 3


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
        manager: Runs the requests.
        publisher: Sends events and acknowledgements.
        leases: Renews the leases on the messages.
        cancelled: Ids of cancelled requests, also of requests that aren't delivered yet.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        manager: ModelManager,
        publisher: EventPublisher,
        leases: LeaseKeeper,
        cancelled: CancelledRequests,
    ) -> None:
        self._client = client
        self._manager = manager
        self._publisher = publisher
        self._leases = leases
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._deliveries: dict[str, _Delivery] = {}
        self._resume_threads = ThreadPoolExecutor(RESUME_THREADS, thread_name_prefix="resume")

    def deliver(
        self,
        message: GenerateMessage,
        *,
        tag: str,
        redelivered: bool,
        acknowledge: Callable[[], None],
    ) -> None:
        """Take one message; return quickly, because Celery's event loop waits.

        Args:
            tag: Delivery tag of the message. The lease renews the tag; the end of the request acknowledges the tag.
            redelivered: Whether another worker had the message before.
            acknowledge: Called once, when the request has ended.
        """
        request_id = message["request_id"]
        with self._lock:
            running = self._deliveries.get(request_id)
            if running is not None:
                # An expired lease has caused a second delivery of the message; both deliveries end together.
                running.acknowledge.append(acknowledge)
                if tag not in running.tags:
                    running.tags.append(tag)
                self._leases.hold(tag)
                return
            delivery = self._deliveries[request_id] = _Delivery(message, [tag], [acknowledge])
            self._leases.hold(tag)
        if request_id in self._cancelled:
            self._drop(request_id)
        elif message["deadline"] < time.time():
            self._fail(delivery, Unavailable("The request waited past its deadline; try again later.", retry_after_s=5))
        elif redelivered:
            self._resume_threads.submit(self._resume, delivery)
        else:
            self._submit(delivery)

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

    def hand_back(self, *, suspect: bool) -> None:
        """Put messages that have not ended back into their queues.

        Args:
            suspect: Whether the requests may have caused this worker's end, so that the attempt counts as suspect.
        """
        with self._lock:
            unfinished, self._deliveries = self._deliveries, {}
        if not unfinished:
            return
        tags = [tag for delivery in unfinished.values() for tag in delivery.tags]
        self._leases.release(tags)
        try:
            pipe: Any = self._client.pipeline(transaction=False)
            for request_id in unfinished if not suspect else ():
                pipe.hincrby(redis_keys.attempt(request_id), "suspects", -1)
                pipe.expire(redis_keys.attempt(request_id), redis_keys.ATTEMPT_EXPIRE_S)
            pipe.execute()
            hand_back(self._client, tags)
            logger.info("%d requests were returned to their queues", len(unfinished))
        except (RedisError, OSError) as error:
            logger.warning("requests could not be handed back (%s); their leases expire", error)

    def stop(self) -> None:
        """End the threads that resume requests."""
        self._resume_threads.shutdown(wait=False, cancel_futures=True)

    # --- the start of a request

    def _submit(self, delivery: _Delivery) -> None:
        request_id = delivery.message["request_id"]
        try:
            self._manager.submit(delivery.message, self._send)
        except Exception:
            logger.exception("request %s could not be submitted", request_id)
            self._fail(delivery, EngineError("The request could not be started because of an internal error."))
            return
        if request_id in self._cancelled:
            # The cancellation came between the check and the submit, when the manager didn't know the request.
            self._manager.cancel(request_id)

    def _resume(self, delivery: _Delivery) -> None:
        """Continue a redelivered request after the tokens that its client has; runs in a thread."""
        request_id = delivery.message["request_id"]
        try:
            attempt, suspects = self._count_attempt(request_id)
            delivered = self._delivered_tokens(delivery, attempt)
        except (RedisError, OSError):
            logger.exception("request %s could not be resumed", request_id)
            self._drop(request_id)
            return
        if suspects > MAX_SUSPECT_DELIVERIES:
            reason = f"The request failed: {suspects} workers were lost while they ran it."
            self._fail(delivery, GenerationFailed(reason))
        elif delivered is None:
            self._drop(request_id)
        else:
            delivery.message["delivered"] = delivered
            self._submit(delivery)

    def _count_attempt(self, request_id: str) -> tuple[int, int]:
        """Count this attempt; return its number, and the number of workers that died while they ran the request."""
        key = redis_keys.attempt(request_id)
        pipe: Any = self._client.pipeline(transaction=True)
        pipe.hincrby(key, "n", 1)
        pipe.hincrby(key, "suspects", 1)
        pipe.expire(key, redis_keys.ATTEMPT_EXPIRE_S)
        attempt, suspects, _ = pipe.execute()
        return int(attempt), int(suspects)

    def _delivered_tokens(self, delivery: _Delivery, attempt: int) -> list[list[int]] | None:
        """Query the web process for its client's tokens; None: no client waits for the request any more."""
        message = delivery.message
        web_id, request_id = message["web_id"], message["request_id"]
        message["attempt"] = attempt
        key = redis_keys.resume(request_id, attempt)
        for _ in range(RESUME_TRIES):
            self._client.xadd(redis_keys.out(web_id), redis_keys.pack_resume_question(request_id, attempt))
            reply: Any = self._client.blpop([key], timeout=RESUME_TIMEOUT_S)
            if reply is not None:
                delivered: list[list[int]] | None = redis_keys.unpack(reply[1])
                return delivered
            if not self._client.exists(redis_keys.web(web_id)):
                self._client.delete(redis_keys.out(web_id))
                return None
        return None

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
