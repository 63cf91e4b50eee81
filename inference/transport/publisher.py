"""EventPublisher: from the engine threads to the web processes' streams.

Engine threads only append to a list; one thread here sends. Everything that waits goes out together:
one ``XADD`` per web process, however many requests it has in the step, and with many streams of what several short
steps made (``delivery_pace``); until then deltas are kept by request, so that one which ends doesn't take along the
others'. Only a first token goes out from its engine's thread, if nothing is on its way already:
waking the thread here would take longer than writing it. A request's last event and the end of
its message (out of Celery's unacknowledged set, out of the admission count) are one transaction, so that a
worker that dies can neither lose an answer nor repeat a finished request.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.transport import keys as redis_keys
from inference.transport.delivery_pace import FIRST_TOKEN, DeliveryPace, can_wait, merge_deltas
from inference.values.messages import GenerationEvent

logger = logging.getLogger(__name__)

MAX_WAITING_EVENTS = 100_000
HANDED_OVER_S = 0.001
"""How long an engine's thread gives way to this one with a first token that it can't send itself."""
SMALL_BYTES = 1 << 15
"""What a socket with nothing in it takes without waiting for Redis."""

_Command = tuple[Any, ...]
_Addressed = tuple[str, GenerationEvent]
"""The web process that an event is for, and the event."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of one delivered message.

    Attributes:
        tags: Its delivery tags; one, or more after a repeated delivery.
        then: Called once the end is recorded in Redis.
    """

    request_id: str
    checkpoint_id: str
    tags: tuple[str, ...] = ()
    then: Callable[[], None] | None = None


@dataclass(slots=True)
class _Waiting:
    events: dict[str, list[GenerationEvent]] = field(default_factory=dict)
    settlements: list[Settlement] = field(default_factory=list)
    num_events: int = 0
    has_kept: bool = False  # some that were kept for further steps, and may follow each other
    is_written: bool = False  # by an engine's thread; its answer is still to be read

    @property
    def has_something(self) -> bool:
        """Whether there is something to send."""
        return bool(self.num_events or self.settlements)

    def add(self, events: Sequence[_Addressed]) -> None:
        """Behind what is here already."""
        for web_id, event in events:
            self.events.setdefault(web_id, []).append(event)
        self.num_events += len(events)


class EventPublisher:
    """Sends events in a thread of its own, in order, without loss while Redis is away.

    Args:
        client: Of the Redis that has the streams.
        interval_s: How long deltas of many streams may wait for those of further steps (see ``DeliveryPace``).
    """

    def __init__(self, client: redis.Redis, *, interval_s: float = 0.0) -> None:
        self._client = client
        self._pace = DeliveryPace(interval_s)
        self._condition = threading.Condition()
        self._connection: Any = None
        self._waiting = _Waiting()
        self._kept: dict[str, list[_Addressed]] = {}  # deltas that wait for further steps', by request
        self._kept_until = math.inf
        self._written: _Waiting | None = None  # left to the thread by an engine's
        self._wakes_at = math.inf  # when it looks again by itself
        self._sending = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def publish(self, events: Sequence[_Addressed], settlements: Sequence[Settlement] = ()) -> None:
        """Send events of one step.

        Args:
            events: (web id, event), in order.
            settlements: Messages that these events end.

        Blocks while 100,000 events wait: then Redis is away, and the engines may as well pause. Blocks for a moment
        with a first token that has to be left to the sending thread: that one needs Python's lock, and would get it
        only in the next forward pass.
        """
        hasty = {event["request_id"] for _, event in events if not can_wait(event)}
        is_first = bool(hasty) and any(event["index"] == FIRST_TOKEN for _, event in events)
        hasty.update(settlement.request_id for settlement in settlements)
        patient = [item for item in events if item[1]["request_id"] not in hasty] if hasty else events
        with self._condition:
            while self._waiting.num_events > MAX_WAITING_EVENTS and not self._stopping:
                self._condition.wait()
            now = time.monotonic()
            until = self._pace.keep_until(len(patient), now)
            if patient:
                self._kept_until = until
            if self._kept_until <= now:
                self._give_out()
                self._waiting.add(events)
            else:
                for item in patient:
                    self._kept.setdefault(item[1]["request_id"], []).append(item)
                if hasty:
                    self._give_out(hasty)
                    self._waiting.add([item for item in events if item[1]["request_id"] in hasty])
            self._waiting.settlements.extend(settlements)
            if is_first and self._write_here(now):
                return
            if self._due_at <= now or self._due_at < self._wakes_at:
                self._condition.notify_all()
            if is_first:
                self._condition.wait_for(lambda: not self._waiting.num_events, HANDED_OVER_S)

    @property
    def _due_at(self) -> float:
        """When the thread has something to send; infinity: when somebody says so."""
        return 0.0 if self._waiting.has_something else self._kept_until

    def _give_out(self, requests: Iterable[str] | None = None) -> None:
        """With the lock held: what is kept, of these requests or of all, waits for nothing any more."""
        for request_id in list(self._kept) if requests is None else requests:
            kept = self._kept.pop(request_id, None)
            if kept:
                self._waiting.add(kept)
                self._waiting.has_kept = True
        if not self._kept:
            self._kept_until = math.inf

    def _write_here(self, now: float) -> bool:
        """With the lock held: write what waits to Redis, and leave its answer to the thread; False: that can't be."""
        connection = self._connection
        if self._sending or connection is None or self._waiting.settlements or len(self._waiting.events) != 1:
            return False
        (command,) = _commands(self._waiting)
        if len(command[-1]) > SMALL_BYTES:
            return False
        batch = self._written = self._begin(now)
        try:
            connection.send_command(*command, check_health=False)
            batch.is_written = True
        except (RedisError, OSError):
            self._drop_connection()
        self._condition.notify_all()
        return True

    def _begin(self, now: float) -> _Waiting:
        """With the lock held: what waits is on its way from here on."""
        if self._kept_until <= now:
            self._give_out()
        batch, self._waiting = self._waiting, _Waiting()
        if not self._kept:
            self._pace.delivered(now)
        self._sending = True
        return batch

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent; False after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            if self._due_at < math.inf:
                self._give_out()
                self._condition.notify_all()
            while self._sending or self._waiting.has_something:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._condition.wait(left)
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        """Send what waits and end the thread."""
        self.flush(timeout_s)
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._send(batch)
            with self._condition:
                self._sending = False
                self._condition.notify_all()

    def _next_batch(self) -> _Waiting | None:
        """Wait until something is due; None: the end."""
        with self._condition:
            # After a delivery the thread sleeps no longer than what comes next may wait: nobody has to wake it then.
            look_again_at = time.monotonic() + self._pace.interval_s
            while (now := time.monotonic()) < self._due_at and self._written is None:
                if self._stopping:
                    return None
                self._wakes_at = min(self._due_at, look_again_at if now < look_again_at else math.inf)
                self._condition.wait(None if self._wakes_at == math.inf else self._wakes_at - now)
            if self._written is not None:
                batch, self._written = self._written, None
            else:
                batch = self._begin(now)
            self._condition.notify_all()
            return batch

    def _send(self, batch: _Waiting) -> None:
        pause_s = 0.05
        while not self._stopping:
            try:
                self._send_once(batch)
                break
            except (RedisError, OSError) as error:
                # A transaction whose answer was lost may have been done: readers drop repeated events by their index.
                logger.warning("events could not be sent (%s), trying again", error)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
        for settlement in batch.settlements:
            if settlement.then is not None:
                try:
                    settlement.then()
                except Exception:
                    logger.exception("the end of request %s could not be passed on", settlement.request_id)

    def _send_once(self, batch: _Waiting) -> None:
        if batch.is_written:
            batch.is_written = False  # should its answer not come, it is written again
            self._exchange((), 1)
            return
        commands = [*_commands(batch), *_settling(batch.settlements)]
        if len(commands) > 1:  # around one command, a transaction would be three commands and answers
            commands = [("MULTI",), *commands, ("EXEC",)]
        if commands:
            self._exchange(commands, len(commands))

    def _exchange(self, commands: Sequence[_Command], num_answers: int) -> None:
        """Send commands, and read these answers and those of commands that are written already.

        On a connection of the publisher's own: the client's way to one costs half of a call's processor time, while the
        engine's thread waits for Python's lock (docs/decisions/0037-deltas-in-one-piece.md).
        """
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        try:
            if commands:
                self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)
            answers = [self._connection.read_response() for _ in range(num_answers)]
            # A transaction's answer holds what its commands answered, errors too.
            for answer in answers[-1] if isinstance(answers[-1], list) else ():
                if isinstance(answer, RedisError):
                    raise answer
        except (RedisError, OSError):
            self._drop_connection()
            raise

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        connection.disconnect()
        self._client.connection_pool.release(connection)


def _commands(batch: _Waiting) -> list[_Command]:
    """One for each web process."""
    return [
        ("XADD", redis_keys.out(web_id), "MAXLEN", "~", redis_keys.OUT_MAX_ENTRIES, "*", *field)
        for web_id, events in batch.events.items()
        for field in redis_keys.pack_events(merge_deltas(events) if batch.has_kept else events).items()
    ]


def _settling(settlements: Sequence[Settlement]) -> list[_Command]:
    """Their messages end: three commands for those of one model, however many they are."""
    requests: dict[str, list[str]] = {}
    for settlement in settlements:
        requests.setdefault(settlement.checkpoint_id, []).append(settlement.request_id)
    commands: list[_Command] = [("ZREM", redis_keys.flight(model), *ids) for model, ids in requests.items()]
    if tags := [tag for settlement in settlements for tag in settlement.tags]:
        commands += [("ZREM", redis_keys.UNACKED_INDEX, *tags), ("HDEL", redis_keys.UNACKED, *tags)]
    return commands
