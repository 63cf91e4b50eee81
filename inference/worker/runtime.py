"""Build, start and stop the parts of one worker process, and carry out control orders."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inference.errors import EngineDead, EngineError
from inference.transport.clients import connect
from inference.transport.control import CancelledRequests, ControlReader
from inference.transport.held_messages import release_dead_workers, release_worker
from inference.transport.keys import fenced
from inference.transport.publisher import EventPublisher
from inference.values.states import WorkerState
from inference.worker.adapters import FindAdapter, PinnedAdapters, no_adapters
from inference.worker.deliveries import Deliveries
from inference.worker.energy import NO_COUNTERS, EnergyCounters, EnergyMeter
from inference.worker.heartbeat import Heartbeat
from inference.worker.intake import Intake
from inference.worker.interfaces import PlanLoad
from inference.worker.model_manager import ModelManager
from inference.worker.presence import RedisPresence
from inference.worker.questions import Questions
from inference.worker.step_watch import StepWatch

logger = logging.getLogger(__name__)

EXIT_ENGINE_DEAD = 70
EXIT_FENCED = 71


class Background(Protocol):
    """Threads of this process besides the engines, such as the job runner."""

    def wake(self) -> None:
        """Look for work now."""
        ...

    def stop(self, timeout_s: float) -> None:
        """Hand back unfinished work and end."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of a worker process.

    Attributes:
        device: ``cpu`` or ``cuda:N``; shown to users.
        budget_bytes: Memory for models.
        max_active: Maximum requests that the worker holds, over all models.
        drain_grace_s: Seconds for running requests to finish at shutdown.
        preload: Checkpoint ids to load at the start and keep.
        min_residence_s: See ``ModelManager``.
        stream_interval_s: See ``EventPublisher``.
        ends_stuck_process: See ``StepWatch``.
    """

    worker_id: str
    redis_url: str
    device: str
    budget_bytes: int
    max_active: int
    drain_grace_s: float
    preload: tuple[str, ...] = ()
    min_residence_s: float = 0.0
    stream_interval_s: float = 0.0
    ends_stuck_process: bool = False


class WorkerRuntime:
    """All parts of a worker except Celery.

    Args:
        plan: Returns the load plan of a checkpoint (see ``ModelManager``).
        config: Settings of the worker.
        find_adapter: Finds the files of a LoRA adapter (see ``ModelManager``).
        pinned_adapters: Finds the LoRA adapters that are loaded with a model (see ``ModelManager``).
        counters: Energy counters of its device.
        start_background: Called after the start with the manager; returns the part that is stopped first, or None.
    """

    def __init__(
        self,
        config: WorkerConfig,
        plan: PlanLoad,
        *,
        find_adapter: FindAdapter = no_adapters,
        pinned_adapters: PinnedAdapters = lambda checkpoint_id: (),
        counters: EnergyCounters = NO_COUNTERS,
        start_background: Callable[[ModelManager], Background | None] = lambda manager: None,
    ) -> None:
        self.config = config
        self._start_background = start_background
        self._background: Background | None = None
        self._client = connect(config.redis_url)
        self._started_at = time.time()
        self._draining = self._stopped = False
        self.cancelled = CancelledRequests()
        self.intake = Intake(
            connect(config.redis_url), config.worker_id, max_held=config.max_active,
            deliver=lambda *message: self.deliveries.deliver(*message), on_fenced=self._on_fenced,
        )  # fmt: skip
        self.publisher = EventPublisher(
            connect(config.redis_url), config.worker_id, on_ended=self.intake.release,
            interval_s=config.stream_interval_s,
        )  # fmt: skip
        self.heartbeat = Heartbeat(
            connect(config.redis_url),
            config.worker_id,
            describe=self.describe,
            web_ids=lambda: self.deliveries.web_ids(),
            on_web_lost=lambda web_id: self.deliveries.cancel_of_web(web_id),
            tick=lambda: self.manager.tick(),
            on_fenced=self._on_fenced,
        )
        self.manager = ModelManager(
            plan=plan,
            presence=RedisPresence(self._client, config.worker_id, self.intake, changed=self.heartbeat.wake),
            budget_bytes=config.budget_bytes, on_dead=self._on_engine_dead, min_residence_s=config.min_residence_s,
            find_adapter=find_adapter, pinned_adapters=pinned_adapters,
        )  # fmt: skip
        self.deliveries = Deliveries(
            self._client, config.worker_id, manager=self.manager, publisher=self.publisher, cancelled=self.cancelled
        )
        self.step_watch = StepWatch(self.manager.loops, self._on_hung, ends_stuck_process=config.ends_stuck_process)
        self.energy = EnergyMeter(counters, self.manager.loops_by_model)
        self.questions = Questions(connect(config.redis_url), config.worker_id, self.manager)
        self.control = ControlReader(
            connect(config.redis_url),
            {
                "cancel": self.manager.cancel,
                "unload": self.manager.unload,
                "forget-adapter": self.manager.forget_adapter,
                "pin": lambda checkpoint_id: self.manager.set_pinned(checkpoint_id, True),
                "unpin": lambda checkpoint_id: self.manager.set_pinned(checkpoint_id, False),
                "query": self.questions.take,
                "jobs": self._wake_background,
            },
            self.cancelled,
        )

    # --- start and stop

    def start(self) -> None:
        """Return the messages of dead workers to their queues, and start the parts that a request needs."""
        release_worker(self._client, self.config.worker_id)  # an earlier process under the same name
        self._client.delete(fenced(self.config.worker_id))
        release_dead_workers(self._client)
        self.control.start()
        self.publisher.start()
        self.intake.start()
        self.step_watch.start()
        self.energy.start()

    def attach(self) -> None:
        """Start the loads of the settings, the heartbeat and the background; Celery's consumer is ready."""
        for checkpoint_id in self.config.preload:
            self.manager.ensure(checkpoint_id, pinned=True)
        self.heartbeat.start()
        self._background = self._start_background(self.manager)

    def stop(self, grace_s: float | None = None) -> None:
        """Let running requests end within ``grace_s``, and return the others to their queues."""
        if self._stopped:
            return
        self._stopped = self._draining = True
        self.heartbeat.wake()
        self.intake.stop()
        deadline = time.monotonic() + (self.config.drain_grace_s if grace_s is None else grace_s)
        if self._background is not None:
            self._background.stop(timeout_s=max(1.0, min(5.0, deadline - time.monotonic())))
        self.deliveries.stop()  # before the manager refuses requests with an error: others can run them
        self.manager.drain(max(0.0, deadline - time.monotonic()))
        self.publisher.flush(5)
        self.deliveries.return_messages()
        self.publisher.stop()
        self.control.stop()
        self.step_watch.stop()
        self.energy.stop()
        self.questions.stop()
        self.heartbeat.stop()

    # --- state and orders

    def describe(self) -> WorkerState:
        """Return the content of the heartbeat."""
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
            is_late=self.step_watch.is_late,
            draining=self._draining,
            models=self.manager.describe(),
            departures=self.manager.departures,
            energy=self.energy.readings,
            energy_notice=self.energy.notice,
        )

    def _wake_background(self, subject: str) -> None:
        if self._background is not None:
            self._background.wake()

    def _on_engine_dead(self, error: EngineDead) -> None:
        """End the process, whose device or allocator may be corrupt; the next process resumes the requests."""
        logger.critical("the engine died: %s", error.message)
        self.deliveries.close()
        threading.Thread(target=self._exit, name="exit", daemon=True).start()

    def _on_hung(self) -> None:
        """End the process, whose forward pass hangs; the next process resumes the requests."""
        self.deliveries.close()
        threading.Thread(target=self._exit, name="exit", daemon=True).start()

    def _on_fenced(self) -> None:
        """End the process: it was stopped for so long that other workers have its requests."""
        logger.critical("this worker was declared dead while it was stopped; its requests run elsewhere")
        os._exit(EXIT_FENCED)

    def _exit(self) -> None:
        try:
            self.intake.stop()
            self.publisher.flush(2)
            release_worker(self._client, self.config.worker_id)
        finally:
            os._exit(EXIT_ENGINE_DEAD)


_current: WorkerRuntime | None = None


def current() -> WorkerRuntime:
    """Return the runtime of this worker process.

    Raises:
        EngineError: This process is not a worker with an engine pool.
    """
    if _current is None:
        raise EngineError("this process has no engine pool; start the worker with: celery … -P custom")
    return _current


def set_current(runtime: WorkerRuntime | None) -> None:
    """Set the runtime of this process; called by the pool."""
    global _current
    _current = runtime
