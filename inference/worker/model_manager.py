"""Hand each request to the engine of its model, and the engine's events back to the caller.

A model is loaded by its first request (or by an order), one load at a time. Requests wait for the load and get its
error if it fails. The error is remembered for two seconds, for requests that are already on their way, so that a later
request tries again. When the memory budget would be exceeded, the least recently used models are unloaded: idle ones at
once, busy ones when their requests have ended. Memory is never freed under a request. A loaded model stays for a while,
or two models that don't fit together would evict each other with every request.

Knows no Celery, no Redis and no Django: those are behind ``Presence`` and ``LoadPlan``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from inference.engine.loop import EngineLoop
from inference.errors import BlazrError, EngineDead, EngineError, GenerationFailed
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.states import Departure, ResidentModel
from inference.worker.interfaces import LoadPlan, OnEvents, Presence, ServedLLM
from inference.worker.loader import ModelLoader
from inference.worker.resident import ActiveRequest, Resident
from inference.worker.resident_models import ResidentModels

logger = logging.getLogger(__name__)

PREPARE_THREADS = 4
FEW_TOKENS = 4096
"""A prompt of no more token ids is prepared in the thread that brings it: waking another one would take longer."""


class ModelManager:
    """Loads, serves and evicts models; all methods are thread-safe.

    Args:
        plan: Returns how to load a checkpoint; raises ``BlazrError`` if that can't be.
        presence: Shows other processes which models are here.
        budget_bytes: Memory for all models together.
        on_dead: Called when an engine can't go on, so that the process has to be replaced. Its requests get no event.
        min_residence_s: A loaded model stays for at least so long, and for at least the time that its load took,
            before it is evicted; 0: it may be evicted at once.
    """

    def __init__(
        self,
        *,
        plan: Callable[[str], LoadPlan],
        presence: Presence,
        budget_bytes: int,
        on_dead: Callable[[EngineDead], None],
        min_residence_s: float = 0.0,
    ) -> None:
        self._plan = plan
        self._presence = presence
        self._on_dead = on_dead
        self._residents = ResidentModels(presence, budget_bytes=budget_bytes, min_residence_s=min_residence_s)
        self._prepare_threads = ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="prepare")
        self._loader = ModelLoader(
            self._residents,
            presence,
            plan=plan,
            make_loop=self._make_loop,
            start=self._start,
            fail=self._fail,
            min_residence_s=min_residence_s,
        )
        self._loader.start()

    # --- requests

    def submit(self, message: GenerateMessage, on_events: OnEvents) -> None:
        """Take a request, and load its model if need be; returns at once.

        Args:
            message: ``model`` is the checkpoint's id.
            on_events: Gets the request's events in order, exactly one of them terminal. Called from engine and
                other threads. Events of one step whose requests gave the *same* callable come in one call.

        Raises:
            ValueError: The request's id is running already.
        """
        submission = self._residents.add_request(message, on_events)
        if submission.error is not None:
            self._fail(submission.request, submission.error)
        elif submission.can_start:
            self._start(submission.request)
        if submission.is_new_model:
            self._presence.advertise(message["model"])
            self._presence.changed()

    def cancel(self, request_id: str) -> bool:
        """End a request early with an error event; False if it is not here."""
        request = self._residents.find_request(request_id)
        if request is None:
            return False
        engine = self._residents.engine_of(request)
        if engine is not None:
            engine.loop.abort(request_id)
        return self._fail(request, GenerationFailed("The request was cancelled."))

    def is_running(self, request_id: str) -> bool:
        """Whether the request is here and has not ended."""
        return self._residents.find_request(request_id) is not None

    @property
    def num_active(self) -> int:
        """Requests that are here, waiting ones included."""
        return self._residents.num_requests

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that are here, oldest first, as plain values."""
        return self._residents.describe_requests()

    # --- models

    def ensure(self, checkpoint_id: str, *, pinned: bool = False) -> None:
        """Load a model that is not here; ``pinned``: never unload it without an order."""
        if self._residents.request_load(checkpoint_id, pinned=pinned):
            self._presence.advertise(checkpoint_id)
            self._presence.changed()

    def unload(self, checkpoint_id: str) -> None:
        """Unload a model once its requests have ended; ids that are not here are ignored."""
        resident = self._residents.request_unload(checkpoint_id)
        if resident is not None:
            self._loader.unload(resident)

    def set_pinned(self, checkpoint_id: str, pinned: bool) -> bool:
        """Keep a model until it is ordered to go, or no longer; False if it is not here."""
        if not self._residents.set_pinned(checkpoint_id, pinned):
            return False
        self._presence.changed()
        return True

    def fit(self, checkpoint_id: str) -> dict[str, Any]:
        """Return whether a model would fit here, and the memory that it would take, as plain values.

        Raises:
            BlazrError: It can't be loaded at all.
        """
        return self._residents.fit(checkpoint_id, self._plan(checkpoint_id))

    @property
    def departures(self) -> tuple[Departure, ...]:
        """The last models that were unloaded, oldest first."""
        return self._residents.departures

    def tick(self) -> None:
        """Unload models whose keep-alive time is over, and forget failed loads; once a second."""
        expired = self._residents.expire()
        for resident in expired.idle:
            self._loader.unload(resident)
        for resident in expired.failed:
            self._loader.remove(resident)

    def describe(self) -> tuple[ResidentModel, ...]:
        """Return the models as people see them."""
        return self._residents.describe()

    @property
    def memory_bytes(self) -> int:
        """Memory that models take, and memory that is reserved for loads."""
        return self._residents.memory_bytes

    def load_cost_s(self) -> float:
        """Return the seconds of the longest load so far, with the evictions for it; 0: there was none."""
        return self._loader.load_cost_s

    def step_age_s(self) -> float:
        """Return the seconds since the last step of the slowest engine that has work; 0: none has."""
        now = time.monotonic()
        loops = [engine.loop for engine in self._residents.engines()]
        return max((now - loop.last_step_at for loop in loops if loop.is_busy), default=0.0)

    def drain(self, timeout_s: float) -> list[str]:
        """Take nothing new, let running requests end, stop the engines.

        Requests that wait for a load, and those that don't end in time, get no event.

        Returns:
            The ids of the requests that didn't end here.
        """
        unfinished, engines = self._residents.drain(timeout_s)
        for engine in engines:
            engine.loop.stop(drain=False, timeout_s=5)
            engine.llm.close()
        self._prepare_threads.shutdown(wait=False, cancel_futures=True)
        return unfinished

    # --- a request into its engine

    def _start(self, request: ActiveRequest) -> None:
        """Hand a request to its engine; in another thread if there is more to do than to check token ids."""
        if _is_quick(request.message):
            self._prepare(request)
        else:
            self._prepare_threads.submit(self._prepare, request)

    def _prepare(self, request: ActiveRequest) -> None:
        """Tokenise the prompt, then hand the request over."""
        engine = self._residents.engine_of(request)
        if engine is None:
            return  # cancelled meanwhile
        try:
            engine.loop.submit(engine.llm.prepare(request.message))
        except BlazrError as error:
            self._fail(request, error)
        except Exception:
            logger.exception("request %s could not be prepared", request.request_id)
            self._fail(request, EngineError("The request could not be prepared because of an internal error."))
        else:
            if not self._residents.is_open(request):
                # Cancelled between the two: the abort may have come before the submit.
                engine.loop.abort(request.request_id)

    # --- its events out

    def _make_loop(self, resident: Resident, plan: LoadPlan, llm: ServedLLM) -> EngineLoop[Any, GenerationEvent]:
        return EngineLoop(
            llm,
            partial(self._pass_on, resident),
            on_refused=self._refuse,
            on_dead=self._on_dead,
            name=f"engine-{plan.name}",
        )

    def _pass_on(self, resident: Resident, events: list[GenerationEvent]) -> None:
        """In the engine's thread: pass the events of one step on, in one call per callable."""
        for on_events, group in self._residents.record_events(resident, events).items():
            _call(on_events, group)

    def _refuse(self, prepared: Any, error: BlazrError) -> None:
        """In the engine's thread: end a request that the engine does not take."""
        request = self._residents.find_request(prepared.request_id)
        if request is not None:
            self._fail(request, error)

    def _fail(self, request: ActiveRequest, error: BlazrError) -> bool:
        """End a request with an error event, unless it has ended."""
        if not self._residents.close_request(request):
            return False
        event: GenerationEvent = {
            "request_id": request.request_id,
            "attempt": request.message["attempt"],
            "index": request.next_index,
            "type": "error",
            "error": error.to_dict(),
        }
        _call(request.on_events, [event])
        return True


def _call(on_events: OnEvents, events: list[GenerationEvent]) -> None:
    try:
        on_events(events)
    except Exception:
        logger.exception("%d events could not be passed on", len(events))


def _is_quick(message: GenerateMessage) -> bool:
    params = message["params"]
    return (
        0 < len(message["prompt"].get("token_ids", ())) <= FEW_TOKENS
        and "echo" not in message
        and params.get("grammar") is None
        and params.get("n", 1) == 1
    )
