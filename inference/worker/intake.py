"""Take messages from the queues of this worker's models, several at a time, and pass them on.

A thread waits in Redis until messages have arrived, then takes them. It takes nothing while no model is added or the
worker holds as many messages as it may.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

import redis
from redis.exceptions import RedisError

from inference.host.outage import Outage
from inference.transport.held_messages import (
    Taken,
    held_messages,
    return_messages,
    take_messages,
    wait_for_messages,
    wake_others,
    wake_worker,
)

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds after which the intake looks at the queues without a wake-up: a woken worker may die before it looks."""
RETRY_S = 0.2


class Intake:
    """Take the messages of models; all methods are thread-safe.

    Args:
        client: Used by the intake only; its socket timeout must be longer than ``POLL_S``.
        worker_id: The worker's id.
        max_held: Most messages that the worker holds.
        deliver: Called with a request's id, its message as JSON and whether a worker had it before.
        on_fenced: Called when other workers have declared this one dead and have taken its messages.
    """

    def __init__(
        self,
        client: redis.Redis,
        worker_id: str,
        *,
        max_held: int,
        deliver: Callable[[str, bytes, bool], object],
        on_fenced: Callable[[], object],
    ) -> None:
        self._client = client
        self._worker_id = worker_id
        self._max_held = max_held
        self._deliver = deliver
        self._on_fenced = on_fenced
        self._models: dict[str, None] = {}  # in the order of turns
        self._paused: set[str] = set()
        self._held: set[str] = set()
        self._stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)

    def start(self) -> None:
        """Start the thread; call once."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more messages, and end the thread; messages that were taken have been passed on."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        try:
            wake_worker(self._client, self._worker_id)
        except (RedisError, OSError) as error:
            logger.warning("the intake could not be woken (%s); it ends by itself", error)
        if self._thread.is_alive():
            self._thread.join(5)

    def add(self, checkpoint_id: str) -> None:
        """Take messages of this model, within ``POLL_S``; ``wake_worker`` makes it at once."""
        with self._condition:
            self._models[checkpoint_id] = None
            self._condition.notify_all()

    def remove(self, checkpoint_id: str) -> None:
        """Take no more messages of this model; those that are being taken now are still passed on."""
        with self._condition:
            self._models.pop(checkpoint_id, None)

    def pause(self, checkpoint_id: str) -> None:
        """Take no messages of this model until ``resume``, whether the model is added, removed or added again."""
        with self._condition:
            self._paused.add(checkpoint_id)

    def resume(self, checkpoint_id: str) -> None:
        """End a pause; messages are taken if the model is added."""
        with self._condition:
            self._paused.discard(checkpoint_id)
            self._condition.notify_all()

    def release(self, request_ids: Iterable[str]) -> None:
        """Hold the messages of these requests no longer: Redis has recorded their end."""
        with self._condition:
            self._held.difference_update(request_ids)
            self._condition.notify_all()

    @property
    def models(self) -> list[str]:
        """The models whose messages are taken."""
        with self._condition:
            return self._open_models()

    @property
    def held(self) -> set[str]:
        """The ids of the requests whose messages this worker holds."""
        with self._condition:
            return set(self._held)

    # --- the thread

    def _run(self) -> None:
        outage = Outage(logger, "the messages of this worker")
        is_unsure = False
        while models := self._next_models():
            try:
                if is_unsure:
                    # Redis may have recorded messages as taken whose reply was lost.
                    return_messages(
                        self._client, self._worker_id, held_messages(self._client, self._worker_id) - self.held
                    )
                    is_unsure = False
                taken = take_messages(
                    self._client, self._worker_id, models, max_messages=self._max_held - len(self._held)
                )
                outage.succeeded()
                if taken is None:
                    self._on_fenced()
                    return
                self._pass_on(taken)
                arrived = wait_for_messages(self._client, self._worker_id, models, POLL_S)
                if arrived is not None and not self._takes(arrived):
                    wake_others(self._client, arrived)
            except (RedisError, OSError) as error:
                outage.failed(error)
                is_unsure = True
                time.sleep(RETRY_S)
            except Exception:  # a worker that lives on would take nothing more
                logger.exception("messages could not be taken; the intake goes on")
                is_unsure = True
                time.sleep(RETRY_S)

    def _next_models(self) -> list[str]:
        """Wait until messages can be taken; return the models in the order of turns, none to end the thread."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopping or (self._open_models() and self._has_capacity()))
            if self._stopping:
                return []
            first = self._open_models()[0]
            self._models[first] = self._models.pop(first)
            return self._open_models()

    def _open_models(self) -> list[str]:
        return [model for model in self._models if model not in self._paused]

    def _has_capacity(self) -> bool:
        return len(self._held) < self._max_held

    def _takes(self, checkpoint_id: str) -> bool:
        with self._condition:
            return checkpoint_id in self._open_models() and self._has_capacity() and not self._stopping

    def _pass_on(self, taken: Taken) -> None:
        if taken.unknown:
            logger.error("%d entries of the queues are no requests of this version, they were dropped", taken.unknown)
        with self._condition:
            self._held.update(message.request_id for message in taken.messages)
        for message in taken.messages:
            try:
                self._deliver(message.request_id, message.body, message.had_before)
            except Exception:
                logger.exception("request %s could not be delivered", message.request_id)
