"""Load models into memory, one at a time, and unload each when its requests have ended."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from inference.engine.loop import EngineLoop
from inference.errors import BlazrError, ModelLoadFailed
from inference.host.machine import return_freed_memory
from inference.host.units import format_bytes
from inference.values.messages import GenerationEvent
from inference.worker.interfaces import LoadPlan, Presence, ServedLLM
from inference.worker.resident import ActiveRequest, Engine, Resident
from inference.worker.resident_models import ResidentModels

logger = logging.getLogger(__name__)

EVICTION_WAIT_S = 60.0
UNLOAD_TIMEOUT_S = 30.0


class ModelLoader:
    """Load the models that ``ResidentModels`` has queued, and unload models.

    Args:
        residents: Table of the models and their states.
        presence: Advertises the worker's models to other processes.
        plan: Returns the load plan of a checkpoint; raises ``BlazrError`` if the checkpoint can't be loaded.
        make_loop: Creates the engine loop of a loaded model.
        admit: Starts the requests that can enter their engines.
        fail: Ends a request whose model could not be loaded.
        min_residence_s: See ``ModelManager``.
        on_ready: Called with the id of each checkpoint that was loaded and stays, in the loader's thread.

    Attributes:
        load_cost_s: Seconds of the longest load so far, with the evictions for it.
    """

    def __init__(
        self,
        residents: ResidentModels,
        presence: Presence,
        *,
        plan: Callable[[str], LoadPlan],
        make_loop: Callable[[Resident, LoadPlan, ServedLLM], EngineLoop[Any, GenerationEvent]],
        admit: Callable[[], object],
        fail: Callable[[ActiveRequest, BlazrError], object],
        min_residence_s: float,
        on_ready: Callable[[str], object] = lambda checkpoint_id: None,
    ) -> None:
        self._residents = residents
        self._presence = presence
        self._plan = plan
        self._make_loop = make_loop
        self._admit = admit
        self._fail_request = fail
        self._min_residence_s = min_residence_s
        self._on_ready = on_ready
        self.load_cost_s = 0.0

    def start(self) -> None:
        """Start the thread; call once."""
        threading.Thread(target=self._run, name="loader", daemon=True).start()

    def unload(self, resident: Resident) -> None:
        """Unload a model whose status is ``unloading``, in a thread of its own."""
        threading.Thread(target=self._unload, args=(resident,), name="unload", daemon=True).start()

    def remove(self, resident: Resident) -> None:
        """Remove a model whose status is ``unloading`` and that has no engine; load it again if it is needed."""
        checkpoint_id = resident.checkpoint_id
        # Withdraw before the removal: a later advertisement would be the successor's.
        has_messages = self._presence.withdraw(checkpoint_id)
        if self._residents.remove(resident, has_messages=has_messages):
            self._presence.advertise(checkpoint_id)
        self._presence.changed()

    # --- the loader's thread

    def _run(self) -> None:
        while (resident := self._residents.next_to_load()) is not None:
            try:
                self._load(resident)
            except BlazrError as error:
                logger.error("checkpoint %s could not be loaded: %s", resident.checkpoint_id, error.message)
                self._finish_failed(resident, error)
            except MemoryError:
                logger.exception("checkpoint %s could not be loaded", resident.checkpoint_id)
                self._finish_failed(resident, ModelLoadFailed("The model does not fit into this worker's memory."))
            except BaseException as error:  # a Rust panic is no Exception
                logger.exception("checkpoint %s could not be loaded", resident.checkpoint_id)
                self._finish_failed(
                    resident,
                    ModelLoadFailed(f"The model could not be loaded ({type(error).__name__}); see the worker's log."),
                )

    def _load(self, resident: Resident) -> None:
        started = time.monotonic()

        def progress(share: float, stage: str = "") -> None:
            self._residents.report_progress(resident, share, stage)
            self._presence.changed()

        progress(0.0, "reading the specification")
        plan = self._plan(resident.checkpoint_id)
        deadline = time.monotonic() + EVICTION_WAIT_S + self._min_residence_s
        while (victim := self._residents.reserve(resident, plan, deadline=deadline)) is not None:
            self.unload(victim)
        llm = plan.load(progress)
        loop = self._make_loop(resident, plan, llm)
        loop.start()
        memory_bytes, load_s = max(llm.total_bytes(), 1), time.monotonic() - started
        self.load_cost_s = max(self.load_cost_s, load_s)
        engine = Engine(llm, loop, resident.checkpoint_id)
        must_unload = self._residents.mark_ready(resident, plan, engine, memory_bytes=memory_bytes, load_s=load_s)
        self._presence.load_ended(resident.checkpoint_id, None)
        self._admit()
        logger.info("%s is ready after %.1f s, %s", plan.name, load_s, format_bytes(memory_bytes))
        if must_unload:
            self.unload(resident)
        else:
            self._on_ready(resident.checkpoint_id)
        self._presence.changed()

    def _finish_failed(self, resident: Resident, error: BlazrError) -> None:
        requests = self._residents.mark_failed(resident, error)
        self._presence.load_ended(resident.checkpoint_id, error)
        for request in requests:
            self._fail_request(request, error)
        self._presence.changed()

    # --- a thread of each unload

    def _unload(self, resident: Resident) -> None:
        self._presence.withdraw(resident.checkpoint_id)
        engine = self._residents.take_engine(resident)
        if engine is None:
            return  # the worker is stopping and stops its engines
        engine.loop.stop(drain=True, timeout_s=UNLOAD_TIMEOUT_S)
        engine.llm.close()
        del engine
        gc.collect()
        return_freed_memory()
        self.remove(resident)
        logger.info("%s is unloaded", resident.name)
