"""Celery's worker pool, which hands generation messages to the engines of this process.

Started by ``-P custom`` with ``CELERY_CUSTOM_WORKER_POOL=inference.worker.pool:EnginePool``. A generation occupies no
thread: ``on_apply`` passes it to ``Deliveries`` and returns. Celery's callback (the late acknowledgement) is called
when the generation ends. ``-c`` is the maximum number of messages that the worker takes. Other tasks run in threads.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from celery.concurrency.base import BasePool, apply_target

from inference.transport import keys as redis_keys
from inference.worker import runtime as worker_runtime
from inference.worker.bootstrap import make_runtime
from inference.worker.deliveries import Deliveries
from inference.worker.runtime import WorkerRuntime

logger = logging.getLogger(__name__)

TASK_THREADS = 4


class Handle:
    """Celery's handle of a running task; ``revoke(terminate=True)`` calls it."""

    def __init__(self, terminate: Callable[[], None]) -> None:
        self._terminate = terminate

    def terminate(self, signal: object = None) -> None:
        """End the task early."""
        self._terminate()


def _cancel(future: Future[Any]) -> None:
    future.cancel()


class EnginePool(BasePool):  # type: ignore[misc]
    """Run generations in the engines, and other tasks in threads."""

    signal_safe = False
    uses_semaphore = False
    body_can_be_buffer = True

    def make_runtime(self) -> WorkerRuntime:
        """Return the parts of this worker; replaced in tests."""
        return make_runtime()

    def on_start(self) -> None:
        """Start the worker's parts, before the first message."""
        self._threads = ThreadPoolExecutor(TASK_THREADS, thread_name_prefix="task")
        # Celery keeps weak references only.
        self._handles: dict[str, Handle] = {}
        self.runtime = self.make_runtime()
        self._deliveries: Deliveries = self.runtime.deliveries
        worker_runtime.set_current(self.runtime)
        self.runtime.start()

    def on_stop(self) -> None:
        """Shut down warmly: take no new messages, and let running requests end within the grace time."""
        self.runtime.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def on_terminate(self) -> None:
        """Shut down at once, and return all messages to their queues."""
        self.runtime.stop(grace_s=0)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        callback: Callable[[Any], None] = lambda result: None,
        accept_callback: Callable[[int, float], None] = lambda pid, at: None,
        **options: Any,
    ) -> Handle:
        """Start a task. ``args`` are (name, id, request, …) as Celery passes them to its trace function."""
        name, task_id, request = args[0], args[1], args[2]
        if name != redis_keys.GENERATE_TASK:
            future = self._threads.submit(
                self._run_task, target, args, kwargs, callback=callback, accept_callback=accept_callback, **options
            )
            return Handle(lambda: _cancel(future))
        accept_callback(os.getpid(), time.monotonic())
        started = time.monotonic()

        def acknowledge() -> None:
            self._handles.pop(task_id, None)
            callback((0, None, time.monotonic() - started))

        handle = self._handles[task_id] = Handle(lambda: self._deliveries.cancel(task_id))
        try:
            message = request["args"][0]
            self._deliveries.deliver(
                message,
                tag=request["properties"]["delivery_tag"],
                redelivered=bool(request["delivery_info"].get("redelivered")),
                acknowledge=acknowledge,
            )
        except Exception:
            # Acknowledge a message that is no generation request, or it would be redelivered for ever.
            logger.exception("message %s is not a generation request and is dropped", task_id)
            acknowledge()
        return handle

    def _run_task(self, target: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> None:
        try:
            apply_target(target, args, kwargs, **options)
        except BaseException:
            logger.exception("task %s failed outside of its body", args[0])

    def terminate_job(self, pid: int, signal: object = None) -> None:
        """Do nothing: Celery calls ``Handle.terminate`` instead."""

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        return info | {"active": len(self._handles)}
