"""Resume returned requests: query their web processes, in one thread, for the tokens that clients have."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError, GenerationFailed, Unavailable
from inference.host.outage import Outage
from inference.transport import keys as redis_keys
from inference.transport.crash_record import MAX_DELIVERIES, CrashRecord
from inference.transport.redis_time import redis_now_estimated
from inference.values.messages import GenerateMessage

logger = logging.getLogger(__name__)

QUERY_AGAIN_S = 5.0
"""Seconds until the question is repeated; two intervals of a web process's heartbeat fit in."""
POLL_S = 0.02
RETRY_S = 0.5
JOIN_S = 2.0

_FIELDS = ("crashes", "seen", "reach", "delivered")


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a returned request goes on.

    Attributes:
        attempt: Number of the attempt, part of each event.
        delivered: Tokens that the client has, per choice; None: no client waits for the request.
        alone_tokens: As in ``GenerateMessage``; None: the request runs with others.
        error: Error with which the request must end.
    """

    attempt: int
    delivered: list[list[int]] | None = None
    alone_tokens: int | None = None
    error: BlazrError | None = None


@dataclass(eq=False, slots=True)
class _Question:
    """One returned request; touched by the thread only."""

    message: GenerateMessage
    then: Callable[[Resumption], None]
    attempt: int = 0
    record: CrashRecord = field(default_factory=CrashRecord)
    query_at: float = 0.0
    web_was_missing: bool = False
    reply: bytes | None = None

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.message["request_id"]


class Resumer:
    """Find out how returned requests go on; no request waits for the web process of another.

    While Redis can't be reached, requests wait here, and this worker keeps their messages.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._condition = threading.Condition()
        self._new: list[_Question] = []
        self._open: list[_Question] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="resume", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; open questions get no reply. Returns when the thread has ended, unless Redis hangs."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(JOIN_S)

    def resume(self, message: GenerateMessage, then: Callable[[Resumption], None]) -> None:
        """Call ``then`` from the thread, once it is known how the request goes on."""
        with self._condition:
            self._new.append(_Question(message, then))
            self._condition.notify()

    # --- the thread

    def _run(self) -> None:
        outage = Outage(logger, "the requests to resume")
        while True:
            with self._condition:
                if not self._open:
                    self._condition.wait_for(lambda: self._new or self._stopping)
                if self._stopping:
                    return
                self._open += self._new
                self._new = []
            try:
                self._query([item for item in self._open if item.query_at <= time.monotonic()])
                self._read_replies()
                outage.succeeded()
                time.sleep(POLL_S)
            except (RedisError, OSError) as error:
                outage.failed(error)
                time.sleep(RETRY_S)
            except Exception:
                logger.exception("requests could not be resumed, trying again")
                time.sleep(RETRY_S)

    def _query(self, questions: list[_Question]) -> None:
        """Count an attempt of each request, and ask the web processes for the tokens of their clients."""
        if not questions:
            return
        pipe: Any = self._client.pipeline(transaction=False)
        for item in questions:
            key = redis_keys.attempt(item.request_id)
            pipe.hincrby(key, "n", 1)
            pipe.expire(key, redis_keys.ATTEMPT_EXPIRE_S)
            pipe.hmget(key, _FIELDS)
            pipe.exists(redis_keys.web(item.message["web_id"]))
        replies = iter(pipe.execute())
        pipe = self._client.pipeline(transaction=False)
        orphans = []
        for item in questions:
            item.attempt, _, counts, is_alive = (next(replies) for _ in range(4))
            item.record = CrashRecord(*(int(count or 0) for count in counts))
            item.query_at = time.monotonic() + QUERY_AGAIN_S
            web_id = item.message["web_id"]
            if not is_alive and item.web_was_missing:
                pipe.delete(redis_keys.out(web_id))
                orphans.append(item)
                continue
            item.web_was_missing = not is_alive
            # The process may be alive although a restarted Redis doesn't know it yet.
            pipe.xadd(redis_keys.out(web_id), redis_keys.pack_resume_question(item.request_id, item.attempt))
            pipe.expire(redis_keys.out(web_id), redis_keys.OUT_EXPIRE_S)
        pipe.execute()
        for item in orphans:
            self._conclude(item, Resumption(item.attempt))

    def _read_replies(self) -> None:
        if not self._open:
            return
        pipe: Any = self._client.pipeline(transaction=False)
        for item in self._open:
            pipe.lpop(redis_keys.resume(item.request_id, item.attempt))
        for item, reply in zip(list(self._open), pipe.execute(), strict=True):
            item.reply = item.reply if reply is None else reply
        for item in list(self._open):
            if item.reply is not None:
                self._conclude(item, self._resumption(item, redis_keys.unpack(item.reply)))
            elif item.message["deadline"] < redis_now_estimated():
                error = Unavailable("The request waited past its deadline; try again later.", retry_after_s=5)
                self._conclude(item, Resumption(item.attempt, error=error))

    def _resumption(self, item: _Question, delivered: list[list[int]] | None) -> Resumption:
        """Apply the rule of ``crash_record``, and store the record."""
        if delivered is None:
            return Resumption(item.attempt)
        record = item.record.resumed(sum(len(tokens) for tokens in delivered))
        values = (record.crashes, record.seen, record.reach, record.delivered)
        self._client.hset(redis_keys.attempt(item.request_id), mapping=dict(zip(_FIELDS, values, strict=True)))
        error = None
        if record.has_failed:
            error = GenerationFailed(f"The request failed: {record.crashes} workers were lost while they ran it.")
        elif item.attempt > MAX_DELIVERIES:
            error = GenerationFailed(f"The request failed: it was started {item.attempt} times and never ended.")
        return Resumption(item.attempt, delivered, record.alone_tokens, error)

    def _conclude(self, item: _Question, resumption: Resumption) -> None:
        self._open.remove(item)
        try:
            item.then(resumption)
        except Exception:
            logger.exception("request %s could not be resumed", item.request_id)
