"""Send the events of the engines to the streams of the web processes.

Engine threads append events; one thread here sends them. Urgent events (the start, the first token and the end of a
request, errors) are sent at once, together with the earlier events of the same request. Other deltas wait until one
flush interval has passed since the last flush. Each flush is one Redis pipeline with one ``XADD`` per web process.
The last event of a request and the record of its end are one transaction, so that a dying worker neither
loses an output nor repeats a finished request.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import redis
from redis.exceptions import RedisError

from inference.host.outage import Outage
from inference.transport import keys as redis_keys
from inference.transport.deltas import is_urgent, join_deltas
from inference.transport.open_requests import release_messages
from inference.values.messages import GenerationEvent

logger = logging.getLogger(__name__)

MAX_WAITING_EVENTS = 100_000

_Addressed = tuple[str, GenerationEvent]
"""The id of a web process, and an event for it."""


@dataclass(slots=True)
class _Batch:
    """The events of one flush, and the requests that end with it."""

    events: list[_Addressed] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.events or self.ended)


class EventPublisher:
    """Send events in order from a thread of its own; keep them while Redis can't be reached.

    Args:
        client: Client of the Redis server that has the streams.
        worker_id: The worker that holds the messages.
        on_ended: Called with the ids of requests whose end Redis has recorded.
        interval_s: Flush interval in seconds; 0 sends every event at once.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker_id: str,
        *,
        on_ended: Callable[[Sequence[str]], object],
        interval_s: float = 0.0,
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._on_ended = on_ended
        self._interval_s = interval_s
        self._condition = threading.Condition()
        self._ready = _Batch()
        self._deferred: dict[str, list[_Addressed]] = {}  # by request id
        self._num_waiting = 0  # events, ready and deferred
        self._flush_at = math.inf  # when the deferred events are due
        self._flushed_at = -math.inf
        self._sending = False
        self._stopping = False
        self._outage = Outage(logger, "the events of this worker")
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def publish(self, events: Sequence[_Addressed], ended: Sequence[str] = ()) -> None:
        """Queue the events of one step; block while more than ``MAX_WAITING_EVENTS`` events wait.

        Args:
            events: Pairs of web id and event, in order.
            ended: Ids of the requests that end with these events.
        """
        # A dict keeps the order of the requests, a set would not.
        urgent = dict.fromkeys(event["request_id"] for _, event in events if is_urgent(event))
        urgent.update(dict.fromkeys(ended))
        with self._condition:
            while self._num_waiting > MAX_WAITING_EVENTS and not self._stopping:
                self._condition.wait()
            for item in events:
                self._deferred.setdefault(item[1]["request_id"], []).append(item)
            self._num_waiting += len(events)
            self._make_ready(urgent)
            self._ready.ended.extend(ended)
            begins_wait = bool(self._deferred) and self._flush_at == math.inf
            if begins_wait:
                self._flush_at = self._flushed_at + self._interval_s
            if self._ready or begins_wait:
                self._condition.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Send all events and wait for it; return False if ``timeout_s`` passes first."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._make_ready(list(self._deferred))
            self._condition.notify_all()
            while self._sending or self._ready:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(left)
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Send all waiting events and end the thread."""
        self.flush(timeout_s)
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(timeout_s)

    def _make_ready(self, request_ids: Iterable[str]) -> None:
        """Move the deferred events of these requests into the next flush; the caller holds the lock."""
        for request_id in request_ids:
            self._ready.events.extend(self._deferred.pop(request_id, ()))
        if not self._deferred:
            self._flush_at = math.inf

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._send(batch)
            with self._condition:
                self._sending = False
                self._condition.notify_all()

    def _next_batch(self) -> _Batch | None:
        """Wait until events are due and return them; return None when the publisher stops."""
        with self._condition:
            while not self._ready and (now := time.monotonic()) < self._flush_at:
                if self._stopping:
                    return None
                self._condition.wait(None if self._flush_at == math.inf else self._flush_at - now)
            now = time.monotonic()
            if now >= self._flush_at:
                self._make_ready(list(self._deferred))
                self._flushed_at = now
            batch, self._ready = self._ready, _Batch()
            self._num_waiting -= len(batch.events)
            self._sending = True
            self._condition.notify_all()
            return batch

    def _send(self, batch: _Batch) -> None:
        pause_s = 0.05
        while not self._stopping:
            try:
                self._send_once(batch)
                self._outage.succeeded()
                break
            except (RedisError, OSError) as error:
                # Redis may have executed a pipeline whose reply was lost; readers drop repeated events by index.
                self._outage.failed(error)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
        if batch.ended:
            self._on_ended(batch.ended)

    def _send_once(self, batch: _Batch) -> None:
        by_web: dict[str, list[GenerationEvent]] = {}
        for web_id, event in batch.events:
            by_web.setdefault(web_id, []).append(event)
        with self._client.pipeline(transaction=bool(batch.ended)) as pipe:
            for web_id, events in by_web.items():
                fields = redis_keys.pack_events(join_deltas(events))
                pipe.xadd(redis_keys.out(web_id), fields, maxlen=redis_keys.OUT_MAX_ENTRIES, approximate=True)
            if batch.ended:
                release_messages(pipe, self._worker_id, batch.ended)
            pipe.execute()
