"""Pass each request to the engine of its model, and the engine's events back to the caller.

A model is loaded by its first request or by an order, one load at a time. Requests wait for the load and get its error
if it fails. Requests within the next two seconds get the same error; a later request loads the model again. If the
memory budget would be exceeded, the least recently used models are unloaded: idle models at once, busy models when
their requests have ended. Memory is never freed under a request. A loaded model stays for a minimum time, so that two
models that don't fit together don't evict each other with every request.

``Presence`` hides Redis from this module, ``LoadPlan`` hides Django.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from inference.engine.loop import EngineLoop
from inference.errors import BlazrError, EngineDead, EngineError, GenerationCancelled, InvalidRequest
from inference.host.units import format_bytes
from inference.values.messages import GenerateMessage, GenerationEvent, error_event
from inference.values.states import Departure, ResidentModel
from inference.worker.adapter_orders import AdapterOrders
from inference.worker.adapters import (
    FindAdapter,
    NeedsReload,
    PinnedAdapters,
    ServedAdapters,
    no_adapters,
    resident_adapters,
)
from inference.worker.fit import plan_for_fit, with_suggestion
from inference.worker.interfaces import LoadPlan, LoadSizes, OnAlone, OnEvents, PlanLoad, Presence, ServedLLM
from inference.worker.loader import ModelLoader
from inference.worker.resident import ActiveRequest, Resident
from inference.worker.resident_models import ResidentModels
from inference.worker.saved_states import SavedStates
from inference.worker.start_queue import StartQueue

logger = logging.getLogger(__name__)

RELOAD_REASON = "it is loaded again with room for an adapter"


class ModelManager:
    """Load, serve and evict models; all methods are thread-safe.

    Args:
        plan: Returns the load plan of a checkpoint; raises ``BlazrError`` if the checkpoint can't be loaded.
        presence: Advertises the worker's models to other processes.
        budget_bytes: Memory for all models together.
        on_dead: Called when an engine has died and the process must be replaced. The engine's requests get no event.
        min_residence_s: Minimum seconds from load to eviction; at least the time of the load (up to a limit) if not 0.
        find_adapter: Finds the files of a LoRA adapter that a request names.
        pinned_adapters: Finds the LoRA adapters that are loaded with a model, ahead of their requests.
    """

    def __init__(
        self,
        *,
        plan: PlanLoad,
        presence: Presence,
        budget_bytes: int,
        on_dead: Callable[[EngineDead], None],
        min_residence_s: float = 0.0,
        find_adapter: FindAdapter = no_adapters,
        pinned_adapters: PinnedAdapters = lambda checkpoint_id: (),
    ) -> None:
        self._plan = plan
        self._presence = presence
        self._on_dead = on_dead
        self._residents = ResidentModels(presence, budget_bytes=budget_bytes, min_residence_s=min_residence_s)
        self._starts = StartQueue(self._prepare)
        self._states = SavedStates()
        self._adapters = ServedAdapters(find_adapter)
        self._adapter_orders = AdapterOrders(
            self._adapters, engines=self._residents.engines, pinned=pinned_adapters, reload=self._reload
        )
        self._loader = ModelLoader(
            self._residents,
            presence,
            plan=plan,
            make_loop=self._make_loop,
            admit=self._admit,
            fail=self._fail,
            min_residence_s=min_residence_s,
            on_ready=self._adapter_orders.load_pinned,
        )
        self._loader.start()

    # --- requests

    def submit(self, message: GenerateMessage, on_events: OnEvents, on_alone: OnAlone | None = None) -> None:
        """Take a request, and load its model if needed; return at once.

        Args:
            message: The request; ``model`` is the checkpoint's id.
            on_events: Called with the request's events in order, exactly one of them terminal, from engine threads
                and others. Events of one step for the *same* callable come in one call.
            on_alone: Called with the request's id when it could begin to run alone; ``start_alone`` then starts it, so
                that its owner can record before that a crash is the request's own. None: it starts by itself.

        Raises:
            ValueError: A request with this id is running.
        """
        submission = self._residents.add_request(message, on_events, on_alone)
        if submission.error is not None:
            self._fail(submission.request, submission.error)
        self._admit()
        if submission.is_new_model:
            self._presence.advertise(message["model"])
            self._presence.changed()

    def start_alone(self, request_id: str) -> None:
        """Start a request for which ``on_alone`` was called, unless it has ended; other requests wait meanwhile."""
        request = self._residents.find_request(request_id)
        if request is not None:
            self._start(request)

    def cancel(self, request_id: str) -> bool:
        """End a request early with an error event; False if the id is unknown."""
        request = self._residents.find_request(request_id)
        if request is None:
            return False
        engine = self._residents.engine_of(request)
        if engine is not None:
            engine.loop.abort(request_id)
        return self._fail(request, GenerationCancelled("The request was cancelled."))

    @property
    def num_active(self) -> int:
        """Number of requests here, waiting ones included."""
        return self._residents.num_requests

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that are here, oldest first, as plain values."""
        return self._residents.describe_requests()

    # --- models

    def ensure(self, checkpoint_id: str, *, pinned: bool = False) -> None:
        """Load a model unless it is loaded or loading; ``pinned``: never unload it without an order."""
        if self._residents.request_load(checkpoint_id, pinned=pinned):
            self._presence.advertise(checkpoint_id)
            self._presence.changed()

    def unload(self, checkpoint_id: str) -> None:
        """Unload a model after its requests have ended; unknown ids are ignored."""
        resident = self._residents.request_unload(checkpoint_id)
        if resident is not None:
            self._loader.unload(resident)

    def forget_adapter(self, adapter_id: str) -> None:
        """Take a removed LoRA adapter away from the model that knows it; requests that run go on."""
        self._adapter_orders.forget(adapter_id)
        self._presence.changed()

    def load_adapter(self, checkpoint_id: str, adapter_id: str) -> dict[str, Any] | None:
        """Load a LoRA adapter ahead of its requests, if its model is loaded here.

        Returns:
            The adapter as in the heartbeat; None: its model isn't loaded here, or is loaded again with room for it.

        Raises:
            BlazrError: As ``AdapterOrders.load``.
        """
        found = self._adapter_orders.load(checkpoint_id, adapter_id)
        self._presence.changed()
        return None if found is None else asdict(found)

    def unload_adapter(self, checkpoint_id: str, adapter_id: str) -> dict[str, Any] | None:
        """Let a LoRA adapter leave the memory; return it while requests go through it, as in the heartbeat."""
        found = self._adapter_orders.unload(checkpoint_id, adapter_id)
        self._presence.changed()
        return None if found is None else asdict(found)

    def set_pinned(self, checkpoint_id: str, pinned: bool) -> bool:
        """Pin or unpin a model, which keeps it until an order to unload; False if the model isn't here."""
        if not self._residents.set_pinned(checkpoint_id, pinned):
            return False
        self._presence.changed()
        return True

    def fit(self, checkpoint_id: str, requested: LoadSizes | None = None) -> dict[str, Any]:
        """Return whether a model would fit here, and the memory that it would take, as plain values.

        Args:
            requested: Sizes in place of the model's settings; None: these.

        Raises:
            BlazrError: The model can't be loaded.
        """
        plan, missing_bytes = plan_for_fit(self._plan, checkpoint_id, requested)
        return with_suggestion(self._residents.fit(checkpoint_id, plan), plan, requested, missing_bytes)

    @property
    def departures(self) -> tuple[Departure, ...]:
        """The last models that were unloaded, oldest first."""
        return self._residents.departures

    def tick(self) -> None:
        """Unload models after their keep-alive time, and remove failed loads; called once a second."""
        expired = self._residents.expire()
        for resident in expired.idle:
            self._loader.unload(resident)
        for resident in expired.failed:
            self._loader.remove(resident)

    def describe(self) -> tuple[ResidentModel, ...]:
        """Return the models in the form of the heartbeat."""
        adapters = {engine.checkpoint_id: resident_adapters(engine.llm) for engine in self._residents.engines()}
        return tuple(
            replace(self._with_preparations(model), adapters=adapters.get(model.checkpoint_id, ()))
            for model in self._residents.describe()
        )

    def _with_preparations(self, model: ResidentModel) -> ResidentModel:
        waiting, running = self._starts.num_preparations(model.checkpoint_id)
        outlook = self._residents.outlook(model.checkpoint_id, self._starts.waiting_ids(model.checkpoint_id))
        return replace(model, num_unprepared=waiting, num_preparing=running, outlook=outlook)

    @property
    def memory_bytes(self) -> int:
        """Memory that models take, and memory that is reserved for loads."""
        return self._residents.memory_bytes

    def load_cost_s(self) -> float:
        """Return the seconds of the longest load so far, with its evictions; 0: there was no load."""
        return self._loader.load_cost_s

    def loops(self) -> list[EngineLoop[Any, GenerationEvent]]:
        """Return the loops of all engines."""
        return [engine.loop for engine in self._residents.engines()]

    def loops_by_model(self) -> list[tuple[str, EngineLoop[Any, GenerationEvent]]]:
        """Return the loops of all engines, each with its checkpoint's id."""
        return [(engine.checkpoint_id, engine.loop) for engine in self._residents.engines()]

    def step_age_s(self) -> float:
        """Return the seconds since the last step of the slowest busy engine; 0: no engine is busy."""
        now = time.monotonic()
        return max((now - loop.last_step_at for loop in self.loops() if loop.is_busy), default=0.0)

    def drain(self, timeout_s: float) -> list[str]:
        """Refuse new requests, wait for running ones to end, and stop the engines.

        Requests that wait for a load, and those that don't end in time, get no event.

        Returns:
            The ids of the requests that didn't end.
        """
        unfinished, engines = self._residents.drain(timeout_s)
        for engine in engines:
            engine.loop.stop(drain=False, timeout_s=5)
            engine.llm.close()
        self._starts.stop()
        self._states.stop()
        return unfinished

    @property
    def runs_alone(self) -> bool:
        """Whether a request runs alone here, or waits to; no job or line should be claimed then."""
        return self._residents.runs_alone

    # --- a request into its engine

    def _admit(self) -> None:
        """Start the requests that can enter their engines now."""
        requests, alone = self._residents.admit()
        if alone is not None:
            # Before the start: should this worker crash, only this request counts as the cause.
            self._presence.run_alone(alone)
        for request in requests:
            if request.on_alone is not None and request.request_id == alone:
                request.on_alone(alone)
            else:
                self._start(request)

    def _start(self, request: ActiveRequest) -> None:
        """Prepare a request and pass it to its engine when it is its turn."""
        try:
            self._starts.add(request)
        except BlazrError as error:
            self._fail(request, error)
            return
        if not self._residents.is_open(request):
            self._starts.remove(request.request_id)  # the request was cancelled meanwhile

    def _prepare(self, request: ActiveRequest) -> None:
        """Tokenise the prompt, then pass the request to its engine."""
        engine = self._residents.engine_of(request)
        if engine is None:
            return  # the request was cancelled
        try:
            request.end_wait("turn")
            self._adapters.ensure(engine.llm, request.message)
            prepared = self._states.prepare(engine.llm, request.message)
            request.end_wait("prepare")
            engine.loop.submit(prepared)
        except NeedsReload as missing:
            self._reload_for(request, missing.num_bytes)
        except BlazrError as error:
            self._fail(request, error)
        except Exception:
            logger.exception("request %s could not be prepared", request.request_id)
            self._fail(request, EngineError("The request could not be prepared because of an internal error."))
        else:
            if not self._residents.is_open(request):
                # The request was cancelled meanwhile, and its abort may have come before the submit.
                engine.loop.abort(request.request_id)

    def _reload_for(self, request: ActiveRequest, num_bytes: int) -> None:
        """Let a request wait until its model is loaded again, with room for the request's adapter."""
        try:
            self._check_fits_adapter(request.message["model"], num_bytes)
        except BlazrError as error:
            self._fail(request, error)
            return
        self._starts.remove(request.request_id)
        resident = self._residents.wait_for_reload(request, RELOAD_REASON)
        if resident is not None:
            self._loader.unload(resident)
        self._admit()

    def _check_fits_adapter(self, checkpoint_id: str, num_bytes: int) -> None:
        """Refuse an adapter for which a model has no room, however it is loaded."""
        plan = self._plan(checkpoint_id)
        if plan.adapter_bytes < num_bytes:
            raise InvalidRequest(
                f"{plan.name} has room for {format_bytes(plan.adapter_bytes)} of adapters, this one takes "
                f"{format_bytes(num_bytes)}; set max_adapters of the model to at least 1, or leave it out.",
                param="model",
            )

    def _reload(self, checkpoint_id: str, num_bytes: int) -> None:
        """Load a model again, with room for an adapter; its requests end first."""
        self._check_fits_adapter(checkpoint_id, num_bytes)
        resident = self._residents.request_reload(checkpoint_id, RELOAD_REASON)
        if resident is not None:
            self._loader.unload(resident)

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
        """Pass on the events of one step, in one call per callable; runs in the engine's thread.

        The last event of a request that saves a state follows when the state is stored, from the thread that stores it.
        """
        passed = [event for event in events if "state" not in event]
        for on_events, group in self._residents.record_events(resident, passed).items():
            for event in group:
                if event["type"] in ("done", "error"):
                    self._starts.remove(event["request_id"])
            _call(on_events, group)
        self._admit()
        if len(passed) < len(events):
            for event in events:
                if "state" in event:
                    self._store(resident, event)

    def _store(self, resident: Resident, event: GenerationEvent) -> None:
        """Store a state behind the other events of its step: its request's first event may be among them."""
        request = self._residents.find_request(event["request_id"])
        engine = None if request is None else self._residents.engine_of(request)
        if request is not None and engine is not None:
            self._states.store(engine.llm, request.message, event, lambda stored: self._pass_on(resident, [stored]))

    def _refuse(self, prepared: Any, error: BlazrError) -> None:
        """End a request that the engine refused; runs in the engine's thread."""
        request = self._residents.find_request(prepared.request_id)
        if request is not None:
            self._fail(request, error)

    def _fail(self, request: ActiveRequest, error: BlazrError) -> bool:
        """End a request with an error event, unless it has ended."""
        if not self._residents.close_request(request):
            return False
        self._starts.remove(request.request_id)
        event = error_event(request.request_id, request.message["attempt"], request.next_index, error)
        _call(request.on_events, [event])
        self._admit()
        return True


def _call(on_events: OnEvents, events: list[GenerationEvent]) -> None:
    try:
        on_events(events)
    except Exception:
        logger.exception("%d events could not be passed on", len(events))
