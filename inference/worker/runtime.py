"""WorkerRuntime: the parts of one worker process, put together, started and stopped in order.

The engine pool gives it Celery messages; it sees to leases, repeated deliveries, cancels, and that
every message ends exactly once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import redis
from redis.exceptions import RedisError

from inference.errors import BlazrError, EngineDead, EngineError, GenerationFailed, Unavailable
from inference.records.tracing import is_tracing, worker_trace
from inference.transport import keys as redis_keys
from inference.transport.control import CancelledRequests, ControlReader
from inference.transport.kombu_transport import settled
from inference.transport.publisher import EventPublisher, Settlement
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.states import WorkerState
from inference.worker.heartbeat import Heartbeat
from inference.worker.interfaces import LoadPlan
from inference.worker.lease import LeaseKeeper, hand_back, release_dead_workers, release_worker
from inference.worker.model_manager import ModelManager
from inference.worker.presence import QueueSelector, RedisPresence
from inference.worker.questions import Questions

logger = logging.getLogger(__name__)

MAX_SUSPECT_DELIVERIES = 2
RESUME_ANSWER_S = 5
RESUME_TRIES = 3
EXIT_ENGINE_DEAD = 70


class Background(Protocol):
    """Something else that works in this process (the job runner)."""

    def wake(self) -> None:
        """There may be something to do."""
        ...

    def stop(self, timeout_s: float) -> None:
        """Hand back what isn't finished and end."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker process is told.

    Attributes:
        device: ``cpu`` or ``cuda:N``; for people.
        budget_bytes: Memory for models.
        max_active: Requests that Celery hands over at most.
        visibility_timeout_s, drain_grace_s: Seconds.
        preload: Checkpoint ids to load at the start and keep.
        min_residence_s: See ``ModelManager``.
        stream_interval_s: See ``EventPublisher``.
    """

    worker_id: str
    redis_url: str
    device: str
    budget_bytes: int
    max_active: int
    visibility_timeout_s: float
    drain_grace_s: float
    preload: tuple[str, ...] = ()
    min_residence_s: float = 0.0
    stream_interval_s: float = 0.0


@dataclass(eq=False, slots=True)
class _Delivery:
    """A message between its delivery and its end."""

    message: GenerateMessage
    tags: list[str]
    done: list[Callable[[], None]] = field(default_factory=list)
    delivered_at: float = field(default_factory=time.monotonic)


class WorkerRuntime:
    """Everything of a worker but Celery.

    Args:
        plan: How to load a checkpoint (see ``ModelManager``).
        config: See there.
        start_background: Called after the start with the manager; what it returns is stopped first.
    """

    def __init__(
        self,
        config: WorkerConfig,
        plan: Callable[[str], LoadPlan],
        *,
        start_background: Callable[[ModelManager], Background | None] = lambda manager: None,
    ) -> None:
        self.config = config
        self._start_background = start_background
        self._background: Background | None = None
        self._client = connect(config.redis_url)
        self._started_at = time.time()
        self._draining = False
        self._stopped = False
        self._lock = threading.Lock()
        self._deliveries: dict[str, _Delivery] = {}
        self._resumes = ThreadPoolExecutor(4, thread_name_prefix="resume")
        self.cancelled = CancelledRequests()
        self.queues = QueueSelector()
        self.publisher = EventPublisher(connect(config.redis_url), interval_s=config.stream_interval_s)
        self.leases = LeaseKeeper(
            connect(config.redis_url), config.worker_id, visibility_timeout_s=config.visibility_timeout_s
        )
        self.heartbeat = Heartbeat(
            connect(config.redis_url),
            config.worker_id,
            describe=self.describe,
            web_ids=self._web_ids,
            on_web_lost=self._cancel_of_web,
            tick=lambda: self.manager.tick(),
        )
        self.manager = ModelManager(
            plan=plan,
            presence=RedisPresence(self._client, config.worker_id, self.queues, changed=self.heartbeat.kick),
            budget_bytes=config.budget_bytes,
            on_dead=self._engine_died,
            min_residence_s=config.min_residence_s,
        )
        self.questions = Questions(connect(config.redis_url), config.worker_id, self.manager)
        self.control = ControlReader(
            connect(config.redis_url),
            {
                "cancel": self._cancel,
                "unload": self._unload,
                "pin": lambda checkpoint_id: self.manager.set_pinned(checkpoint_id, True),
                "unpin": lambda checkpoint_id: self.manager.set_pinned(checkpoint_id, False),
                "ask": self.questions.take,
                "jobs": self._wake_background,
            },
            self.cancelled,
        )

    # --- life

    def start(self) -> None:
        """Before Celery consumes: what dead workers held goes back first, so that it comes with the first read."""
        release_worker(self._client, self.config.worker_id)  # an earlier life under the same name
        release_dead_workers(self._client)
        self.control.start()
        self.publisher.start()
        self.leases.start()

    def attach(self, consumer: Any) -> None:
        """Celery consumes now: announce the worker and load what it was told to."""
        self.queues.attach(consumer)
        for checkpoint_id in self.config.preload:
            self.manager.ensure(checkpoint_id, pinned=True)
        self.heartbeat.start()
        self._background = self._start_background(self.manager)

    def stop(self, grace_s: float | None = None) -> None:
        """Let running requests end for ``grace_s``; what doesn't goes back to its queue for the next worker."""
        if self._stopped:
            return
        self._stopped = self._draining = True
        self.heartbeat.kick()
        deadline = time.monotonic() + (self.config.drain_grace_s if grace_s is None else grace_s)
        if self._background is not None:
            self._background.stop(timeout_s=max(1.0, min(5.0, deadline - time.monotonic())))
        self.manager.drain(max(0.0, deadline - time.monotonic()))
        self.publisher.flush(5)
        self._hand_back_rest(suspect=False)
        self.publisher.stop()
        self.control.stop()
        self.questions.stop()
        self.leases.stop()
        self.heartbeat.stop()
        self._resumes.shutdown(wait=False, cancel_futures=True)

    # --- messages

    def deliver(
        self,
        message: GenerateMessage,
        *,
        tag: str,
        redelivered: bool,
        done: Callable[[], None],
        is_noted: bool = False,
    ) -> None:
        """Take one message; quick, as Celery's event loop waits.

        Args:
            tag: Its delivery tag, which the lease renews and the end acknowledges.
            redelivered: It was given to a worker before.
            done: Called once when the message has ended.
            is_noted: The transport has noted the tag as this worker's.
        """
        request_id = message["request_id"]
        with self._lock:
            running = self._deliveries.get(request_id)
            if running is not None:
                # The same message again (an expired lease): it ends with the one that runs.
                running.done.append(done)
                if tag not in running.tags:
                    running.tags.append(tag)
                self.leases.hold(tag, is_noted=is_noted)
                return
            delivery = self._deliveries[request_id] = _Delivery(message, [tag], [done])
        self.leases.hold(tag, is_noted=is_noted)
        if request_id in self.cancelled:
            self._settle_silently(request_id)
        elif message["deadline"] < time.time():
            self._fail(delivery, Unavailable("The request waited past its deadline; try again later.", retry_after_s=5))
        elif redelivered:
            self._resumes.submit(self._deliver_again, delivery)
        else:
            self._submit(delivery)

    def terminate(self, request_id: str) -> None:
        """Celery's ``revoke(terminate=True)``."""
        self._cancel(request_id)

    def describe(self) -> WorkerState:
        """The heartbeat's content."""
        return WorkerState(
            worker_id=self.config.worker_id,
            pid=os.getpid(),
            host=os.uname().nodename,
            device=self.config.device,
            started_at=self._started_at,
            heartbeat_at=time.time(),
            memory_budget_bytes=self.config.budget_bytes,
            memory_used_bytes=self.manager.memory_bytes,
            num_active=self.manager.num_active,
            max_active=self.config.max_active,
            step_age_s=round(self.manager.step_age_s(), 3),
            draining=self._draining,
            models=self.manager.describe(),
            departures=self.manager.departures,
        )

    # --- inside

    def _submit(self, delivery: _Delivery) -> None:
        try:
            self.manager.submit(delivery.message, self._emit, _nothing)
        except Exception:
            logger.exception("request %s could not be submitted", delivery.message["request_id"])
            self._fail(delivery, EngineError("The request could not be started because of an internal error."))
            return
        if delivery.message["request_id"] in self.cancelled:
            # The cancel came between our look at the list and the submit, and found nothing to end.
            self.manager.cancel(delivery.message["request_id"])

    def _deliver_again(self, delivery: _Delivery) -> None:
        """In a thread: a worker had this request before. Find out what its client has, and go on behind that."""
        message = delivery.message
        request_id = message["request_id"]
        try:
            pipe: Any = self._client.pipeline(transaction=True)
            key = redis_keys.attempt(request_id)
            pipe.hincrby(key, "n", 1)
            pipe.hincrby(key, "suspects", 1)
            pipe.expire(key, redis_keys.ATTEMPT_EXPIRE_S)
            number, suspects, _ = pipe.execute()
            if suspects > MAX_SUSPECT_DELIVERIES:
                self._take_over(delivery, int(number))
                self._fail(
                    delivery,
                    GenerationFailed(f"The request was given up: {suspects} workers were lost while they ran it."),
                )
                return
            delivered = self._take_over(delivery, int(number))
        except (RedisError, OSError):
            logger.exception("request %s could not be taken over", request_id)
            delivered = None
        if delivered is None:
            self._settle_silently(request_id)
            return
        delivery.message["delivered"] = delivered
        self._submit(delivery)

    def _take_over(self, delivery: _Delivery, number: int) -> list[list[int]] | None:
        """Ask the web process what its client has; None: nobody waits for the request any more."""
        message = delivery.message
        web_id, request_id = message["web_id"], message["request_id"]
        message["attempt"] = number
        key = redis_keys.resume(request_id, number)
        for _ in range(RESUME_TRIES):
            self._client.xadd(redis_keys.out(web_id), redis_keys.pack_resume_question(request_id, number))
            answer: Any = self._client.blpop([key], timeout=RESUME_ANSWER_S)
            if answer is not None:
                delivered: list[list[int]] | None = redis_keys.unpack(answer[1])
                return delivered
            if not self._client.exists(redis_keys.web(web_id)):
                self._client.delete(redis_keys.out(web_id))
                return None
        return None

    def _emit(self, events: list[GenerationEvent]) -> None:
        """Send events to their web processes; a terminal one ends its message."""
        addressed: list[tuple[str, GenerationEvent]] = []
        settlements: list[Settlement] = []
        for event in events:
            request_id = event["request_id"]
            delivery = self._deliveries.get(request_id)
            if delivery is None:
                continue
            addressed.append((delivery.message["web_id"], event))
            if event["type"] in ("done", "error"):
                if is_tracing():
                    worker_trace(delivery.message, event, delivered_at=delivery.delivered_at)
                settlements.append(self._settlement(request_id))
        self.publisher.publish(addressed, settlements)

    def _fail(self, delivery: _Delivery, error: BlazrError) -> None:
        message = delivery.message
        self._emit(
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

    def _settle_silently(self, request_id: str) -> None:
        self.publisher.publish([], [self._settlement(request_id)])

    def _settlement(self, request_id: str) -> Settlement:
        with self._lock:
            delivery = self._deliveries.pop(request_id)

        def ended() -> None:
            self.leases.release(delivery.tags)
            settled.add(delivery.tags)
            for done in delivery.done:
                done()

        return Settlement(request_id, delivery.message["model"], tuple(delivery.tags), ended)

    def _cancel(self, request_id: str) -> None:
        self.manager.cancel(request_id)

    def _unload(self, checkpoint_id: str) -> None:
        self.manager.unload(checkpoint_id)

    def _wake_background(self, subject: str) -> None:
        if self._background is not None:
            self._background.wake()

    def _web_ids(self) -> list[str]:
        with self._lock:
            return [delivery.message["web_id"] for delivery in self._deliveries.values()]

    def _cancel_of_web(self, web_id: str) -> None:
        with self._lock:
            lost = [key for key, delivery in self._deliveries.items() if delivery.message["web_id"] == web_id]
        for request_id in lost:
            self.manager.cancel(request_id)

    def _hand_back_rest(self, *, suspect: bool) -> None:
        """Put messages that didn't end back into their queues; a drain is no reason to suspect them."""
        with self._lock:
            rest, self._deliveries = self._deliveries, {}
        if not rest:
            return
        tags = [tag for delivery in rest.values() for tag in delivery.tags]
        self.leases.release(tags)
        try:
            pipe: Any = self._client.pipeline(transaction=False)
            for request_id in rest if not suspect else ():
                pipe.hincrby(redis_keys.attempt(request_id), "suspects", -1)
                pipe.expire(redis_keys.attempt(request_id), redis_keys.ATTEMPT_EXPIRE_S)
            pipe.execute()
            hand_back(self._client, tags)
            logger.info("%d requests go back to their queues", len(rest))
        except (RedisError, OSError) as error:
            logger.warning("requests could not be handed back (%s); their leases expire", error)

    def _engine_died(self, error: EngineDead) -> None:
        """The device or the allocator can't be trusted any more: leave, and let the next process go on."""
        logger.critical("the engine died: %s", error.message)
        threading.Thread(target=self._leave, name="leave", daemon=True).start()

    def _leave(self) -> None:
        try:
            self.publisher.flush(2)
            self._hand_back_rest(suspect=True)
            release_worker(self._client, self.config.worker_id)
        finally:
            os._exit(EXIT_ENGINE_DEAD)


def connect(redis_url: str) -> redis.Redis:
    """A client whose answers have to come within ten seconds (blocking reads take up to five)."""
    return redis.Redis.from_url(redis_url, protocol=2, socket_timeout=10, socket_connect_timeout=2)


def _nothing() -> None:
    return None


_current: WorkerRuntime | None = None


def current() -> WorkerRuntime:
    """The runtime of this worker process.

    Raises:
        EngineError: This process is no worker with an engine pool.
    """
    if _current is None:
        raise EngineError("this process has no engine pool; start the worker with: celery … -P custom")
    return _current


def set_current(runtime: WorkerRuntime | None) -> None:
    """Called by the pool."""
    global _current
    _current = runtime
