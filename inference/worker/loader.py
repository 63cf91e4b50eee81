"""Bringing models into memory, one at a time, and out of it again once their requests have ended."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from inference.engine.loop import EngineLoop
from inference.errors import BlazrError, EngineDead, ModelLoadFailed
from inference.host.machine import return_freed_memory
from inference.host.units import format_bytes
from inference.values.messages import GenerationEvent
from inference.values.states import Departure
from inference.worker.eviction import room_for
from inference.worker.interfaces import LoadPlan, Presence
from inference.worker.request_router import RequestRouter
from inference.worker.resident_models import Resident

logger = logging.getLogger(__name__)

EVICTION_WAIT_S = 60.0
MAX_DEPARTURES = 20


class ModelLoader:
    """Loads what is put into its queue, evicts what is in the way, unloads what is asked to go.

    Args:
        condition: The manager's lock, which guards the residents.
        residents: The manager's models by checkpoint id.
        router: Takes the requests that waited.
        presence: Learns what is here.
        plan, budget_bytes, on_dead, min_residence_s: See ``ModelManager``.

    Attributes:
        load_cost_s: Seconds of the longest load so far.
    """

    def __init__(
        self,
        condition: threading.Condition,
        residents: dict[str, Resident],
        router: RequestRouter,
        presence: Presence,
        *,
        plan: Callable[[str], LoadPlan],
        budget_bytes: int,
        on_dead: Callable[[EngineDead], None],
        min_residence_s: float,
    ) -> None:
        self._condition = condition
        self._residents = residents
        self._router = router
        self._presence = presence
        self._plan = plan
        self._budget_bytes = budget_bytes
        self._on_dead = on_dead
        self._min_residence_s = min_residence_s
        self._departures: deque[Departure] = deque(maxlen=MAX_DEPARTURES)
        self._queue: deque[Resident] = deque()
        self._closing = False
        self.load_cost_s = 0.0
        threading.Thread(target=self._run, name="loader", daemon=True).start()

    @property
    def departures(self) -> tuple[Departure, ...]:
        """The last models that were unloaded, oldest first."""
        return tuple(self._departures)

    def enqueue(self, resident: Resident) -> None:
        """With the lock held: load it when its turn comes."""
        self._queue.append(resident)
        self._condition.notify_all()

    def close(self) -> None:
        """With the lock held: begin nothing more."""
        self._closing = True
        self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._closing:
                    self._condition.wait()
                if self._closing:
                    return
                resident = self._queue.popleft()
            try:
                self._load(resident)
            except BlazrError as error:
                logger.error("checkpoint %s could not be loaded: %s", resident.checkpoint_id, error.message)
                self._load_failed(resident, error)
            except MemoryError:
                logger.exception("checkpoint %s could not be loaded", resident.checkpoint_id)
                self._load_failed(resident, ModelLoadFailed("The model does not fit into this worker's memory."))
            except BaseException as error:  # a Rust panic is no Exception
                logger.exception("checkpoint %s could not be loaded", resident.checkpoint_id)
                self._load_failed(
                    resident,
                    ModelLoadFailed(f"The model could not be loaded ({type(error).__name__}); see the worker's log."),
                )

    def _load(self, resident: Resident) -> None:
        started = time.monotonic()

        def progress(share: float, stage: str = "") -> None:
            resident.progress, resident.stage = min(max(share, 0.0), 1.0), stage
            self._presence.changed()

        progress(0.0, "reading the specification")
        plan = self._plan(resident.checkpoint_id)
        self._make_room(resident, plan)
        llm = plan.load(progress)
        loop: EngineLoop[Any, GenerationEvent] = EngineLoop(
            llm,
            lambda events: self._router.dispatch(resident, events),
            on_refused=self._router.refused,
            on_dead=self._on_dead,
            name=f"engine-{plan.name}",
        )
        loop.start()
        with self._condition:
            resident.plan, resident.llm, resident.loop = plan, llm, loop
            resident.memory_bytes = max(llm.total_bytes(), 1)
            resident.status, resident.progress, resident.stage = "ready", 1.0, ""
            resident.last_used = resident.ready_at = time.monotonic()
            resident.load_s = resident.ready_at - started
            resident.pinned |= plan.pinned
            routes, resident.waiting = resident.waiting, []
            for route in routes:
                self._router.count(route)
            if resident.unload_asked:
                resident.pinned = False
                self.begin_unload(resident, "it was asked to go while it was loading")
            self._condition.notify_all()
        self.load_cost_s = max(self.load_cost_s, time.monotonic() - started)
        self._presence.load_ended(resident.checkpoint_id, None)
        for route in routes:
            self._router.start(route)
        logger.info(
            "%s is ready after %.1f s, %s", plan.name, time.monotonic() - started, format_bytes(resident.memory_bytes)
        )
        self._router.regulate(resident)
        self._presence.changed()

    def _load_failed(self, resident: Resident, error: BlazrError) -> None:
        with self._condition:
            resident.status, resident.error, resident.failed_at = "failed", error, time.monotonic()
            resident.memory_bytes = 0
            routes = list(resident.waiting)
            self._condition.notify_all()
        self._presence.load_ended(resident.checkpoint_id, error)
        for route in routes:
            self._router.end(route, error)
        self._presence.changed()

    def _make_room(self, resident: Resident, plan: LoadPlan) -> None:
        """Evict until the model fits, and reserve its memory.

        Raises:
            ModelLoadFailed: It can't fit, or those in its way don't end in time.
        """
        needed, budget = plan.needed_bytes, self._budget_bytes
        if needed > budget:
            raise ModelLoadFailed(
                f"{plan.name} needs {format_bytes(needed)}, the memory budget of this worker is "
                f"{format_bytes(budget)}; raise BLAZR_MEMORY_BUDGET, or lower max_model_len or dtype of the model."
            )
        deadline = time.monotonic() + EVICTION_WAIT_S + max(self._min_residence_s, 0.0)
        with self._condition:
            while True:
                now = time.monotonic()
                others = [item for item in self._residents.values() if item is not resident]
                room = room_for(needed, others, budget_bytes=budget, min_residence_s=self._min_residence_s, now=now)
                if room.step == "fits":
                    resident.memory_bytes = needed
                    return
                if room.step == "never":
                    raise ModelLoadFailed(
                        f"{plan.name} needs {format_bytes(needed)}, and models that stay loaded take "
                        f"{format_bytes(sum(item.memory_bytes for item in others))} of this worker's "
                        f"{format_bytes(budget)}; unload one of them, or raise BLAZR_MEMORY_BUDGET."
                    )
                if room.victim is not None:
                    reason = f"{plan.name} needed {format_bytes(needed)} and it was used least recently"
                    self.begin_unload(room.victim, reason)
                elif not self._closing and now < deadline:
                    wake_at = deadline if room.look_at is None else min(deadline, room.look_at)
                    self._condition.wait(max(wake_at - now, 0.001))
                else:
                    raise ModelLoadFailed(
                        f"{plan.name} waits for memory that other models still use; try again later.",
                        retry_after_s=10,
                    )

    def begin_unload(self, resident: Resident, reason: str) -> None:
        """With the lock held: no new requests; a thread frees the model when the present ones have ended."""
        resident.status = "unloading"
        resident_s = time.monotonic() - resident.ready_at
        self._departures.append(
            Departure(resident.checkpoint_id, reason, resident.memory_bytes, round(resident_s, 3), time.time())
        )
        logger.info("%s is going to be unloaded: %s", resident.plan.name if resident.plan else "a model", reason)
        threading.Thread(target=self._finish_unload, args=(resident,), name="unload", daemon=True).start()

    def _finish_unload(self, resident: Resident) -> None:
        checkpoint_id = resident.checkpoint_id
        self._presence.vanish(checkpoint_id)
        with self._condition:
            while resident.active and not self._closing:
                self._condition.wait()
            if self._closing:
                return
        assert resident.llm is not None
        assert resident.loop is not None
        assert resident.plan is not None
        resident.loop.stop(drain=True, timeout_s=30)
        resident.llm.close()
        name = resident.plan.name
        resident.llm = resident.loop = None
        gc.collect()
        return_freed_memory()
        self.remove(resident)
        logger.info("%s is unloaded", name)

    def remove(self, resident: Resident) -> None:
        """Forget a model whose status is ``unloading`` and that holds nothing any more; load it again if it is wanted.

        Withdrawn while it still has its place: an announcement that came later would be its successor's.
        """
        checkpoint_id = resident.checkpoint_id
        is_queued = self._presence.vanish(checkpoint_id)
        again: Resident | None = None
        with self._condition:
            del self._residents[checkpoint_id]
            if (resident.waiting or resident.reload_asked or is_queued) and not self._closing:
                again = self._residents[checkpoint_id] = Resident(
                    checkpoint_id,
                    pinned=resident.pinned,
                    waiting=resident.waiting,
                    keep_alive_s=resident.keep_alive_s,
                )
                for route in again.waiting:
                    route.resident = again
                self.enqueue(again)
            self._condition.notify_all()
        if again is not None:
            self._presence.appear(checkpoint_id)
        self._presence.changed()
