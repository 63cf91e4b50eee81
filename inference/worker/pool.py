"""Celery's worker pool: the process whose engines run generations.

Started by ``-P custom`` with ``CELERY_CUSTOM_WORKER_POOL=inference.worker.pool:EnginePool``. Celery's tasks (loads,
sweeps, webhooks) run in threads. Generations aren't tasks: ``inference.worker.intake`` takes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from celery.concurrency.base import BasePool, apply_target

from inference.worker import runtime as worker_runtime
from inference.worker.bootstrap import make_runtime
from inference.worker.runtime import WorkerRuntime

logger = logging.getLogger(__name__)


class Handle:
    """Celery's handle of a running task; ``revoke(terminate=True)`` calls it."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def terminate(self, signal: object = None) -> None:
        """Cancel the task unless it has begun."""
        self._future.cancel()


class EnginePool(BasePool):  # type: ignore[misc]
    """Start and stop the worker's parts, and run Celery's tasks in threads."""

    signal_safe = False
    uses_semaphore = False
    body_can_be_buffer = True

    def make_runtime(self) -> WorkerRuntime:
        """Return the parts of this worker; replaced in tests."""
        return make_runtime()

    def on_start(self) -> None:
        """Start the worker's parts, before the first task."""
        self._threads = ThreadPoolExecutor(self.limit, thread_name_prefix="task")
        self.runtime = self.make_runtime()
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
        **options: Any,
    ) -> Handle:
        """Start a task. ``args`` are (name, id, request, …) as Celery passes them to its trace function."""
        return Handle(self._threads.submit(self._run_task, target, args, kwargs, **options))

    def _run_task(self, target: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> None:
        try:
            apply_target(target, args, kwargs, **options)
        except BaseException:
            logger.exception("task %s failed outside of its body", args[0])

    def terminate_job(self, pid: int, signal: object = None) -> None:
        """Do nothing: Celery calls ``Handle.terminate`` instead."""
