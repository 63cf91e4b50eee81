"""Keep the models and requests of this worker, behind the worker's one lock.

Each change is one method of ``ResidentModels``. It returns what its caller has to do without the lock: start requests,
end them with an error, unload a model, advertise it. Under the lock nothing is called but pure functions and
``Presence.pause`` and ``Presence.resume``, which only queue an order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from inference.errors import BlazrError, GenerationFailed, ModelLoadFailed
from inference.host.units import format_bytes
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.states import Departure, ResidentModel
from inference.worker.eviction import fit_report, next_eviction_step
from inference.worker.interfaces import LoadPlan, OnEvents, Presence
from inference.worker.resident import ActiveRequest, Engine, Resident

logger = logging.getLogger(__name__)

FAILED_FOR_S = 2.0
"""How long the error of a failed load is given to further requests."""
MAX_DEPARTURES = 20


@dataclass(frozen=True, slots=True)
class Submission:
    """What to do with a request that was put on the books.

    Attributes:
        can_start: Its model is ready.
        error: It has to end with this error.
        is_new_model: Its model was not here: advertise the model.
    """

    request: ActiveRequest
    can_start: bool = False
    error: BlazrError | None = None
    is_new_model: bool = False


class Expired(NamedTuple):
    """Models to unload, and failed loads to remove."""

    idle: list[Resident]
    failed: list[Resident]


class Drained(NamedTuple):
    """Ids of requests that did not end, and engines to stop."""

    unfinished: list[str]
    engines: list[Engine]


class ResidentModels:
    """The models and requests that are here; all methods are thread-safe.

    Args:
        presence: Pauses and resumes the queue of a model that has enough requests.
        budget_bytes: Memory for all models together.
        min_residence_s: A loaded model is not evicted for so long, and not for the time that its load took.
    """

    def __init__(self, presence: Presence, *, budget_bytes: int, min_residence_s: float) -> None:
        self._presence = presence
        self._budget_bytes = budget_bytes
        self._min_residence_s = min_residence_s
        self._condition = threading.Condition()
        self._residents: dict[str, Resident] = {}
        self._requests: dict[str, ActiveRequest] = {}
        self._to_load: deque[Resident] = deque()
        self._departures: deque[Departure] = deque(maxlen=MAX_DEPARTURES)
        self._closing = False

    # --- requests

    def add_request(self, message: GenerateMessage, on_events: OnEvents) -> Submission:
        """Put a request on the books, and queue the load of its model if need be.

        Raises:
            ValueError: The id is running already.
        """
        checkpoint_id, request_id = message["model"], message["request_id"]
        with self._condition:
            if request_id in self._requests:
                raise ValueError(f"request {request_id!r} is running already")
            resident = self._residents.get(checkpoint_id)
            is_new = resident is None and not self._closing
            if resident is None:
                resident = Resident(checkpoint_id)
            request = self._requests[request_id] = ActiveRequest(message, on_events, resident)
            resident.touch()
            resident.keep_alive_s = message.get("keep_alive_s", resident.keep_alive_s)
            if self._closing:
                return Submission(request, error=GenerationFailed("The worker is stopping; send the request again."))
            if resident.status == "failed":
                return Submission(request, error=resident.error)
            if resident.status == "ready":
                self._enter_engine(request)
                return Submission(request, can_start=True)
            resident.waiting.append(request)
            if is_new:
                self._queue_load(resident)
            return Submission(request, is_new_model=is_new)

    def find_request(self, request_id: str) -> ActiveRequest | None:
        """Return the request of this id, if it has not ended."""
        with self._condition:
            return self._requests.get(request_id)

    def is_open(self, request: ActiveRequest) -> bool:
        """Whether the request has not ended."""
        with self._condition:
            return self._is_open(request)

    def engine_of(self, request: ActiveRequest) -> Engine | None:
        """Return the engine of a request; None: the request has ended, or waits for a load."""
        with self._condition:
            return request.resident.engine if self._is_open(request) else None

    def close_request(self, request: ActiveRequest) -> bool:
        """Take a request off the books; False if that was done already."""
        with self._condition:
            if not self._is_open(request):
                return False
            self._remove_request(request)
            return True

    def record_events(self, resident: Resident, events: list[GenerationEvent]) -> dict[OnEvents, list[GenerationEvent]]:
        """Count the events of one step, and take requests off the books that end with them.

        Returns:
            The events of open requests, by the callable that gets them.
        """
        groups: dict[OnEvents, list[GenerationEvent]] = {}
        num_tokens = 0
        with self._condition:
            for event in events:
                request = self._requests.get(event["request_id"])
                if request is None or request.resident is not resident:
                    continue
                request.next_index = event["index"] + 1
                count = len(event.get("token_ids", ()))
                request.num_tokens += count
                num_tokens += count
                groups.setdefault(request.on_events, []).append(event)
                if event["type"] in ("done", "error"):
                    self._remove_request(request)
            if num_tokens:
                resident.token_counts.append((time.monotonic(), num_tokens))
        return groups

    def describe_requests(self) -> list[dict[str, Any]]:
        """Return the requests that are here, oldest first, as plain values."""
        with self._condition:
            return [item.describe() for item in sorted(self._requests.values(), key=lambda item: item.received_at)]

    @property
    def num_requests(self) -> int:
        """Requests that are here, waiting ones included."""
        with self._condition:
            return len(self._requests)

    # --- orders

    def request_load(self, checkpoint_id: str, *, pinned: bool) -> bool:
        """Queue the load of a model that is not here; returns whether to advertise the model."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is None or resident.status == "failed":
                if self._closing:
                    return False
                self._queue_load(Resident(checkpoint_id, pinned=pinned))
                return True
            resident.pinned |= pinned
            resident.last_used = time.monotonic()
            resident.unload_requested = False
            if resident.status == "unloading":
                resident.reload_requested = True
                return False
            # A load was requested although the model is here: Redis has lost its advertisement, so it is repeated.
            return not resident.paused

    def request_unload(self, checkpoint_id: str) -> Resident | None:
        """Order a model to go; returns it if its unload begins now."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is None or resident.status == "failed":
                return None
            resident.pinned = False
            if resident.status == "loading":
                resident.unload_requested = True
                return None
            if resident.status == "unloading":
                resident.reload_requested = False
                return None
            self._begin_unload(resident, "it was asked to go")
            return resident

    def set_pinned(self, checkpoint_id: str, pinned: bool) -> bool:
        """Keep a model until it is ordered to go, or no longer; False if it is not here."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is None:
                return False
            resident.pinned = pinned
            resident.last_used = time.monotonic()
            self._condition.notify_all()
            return True

    def expire(self) -> Expired:
        """Begin the unload of idle models, and the removal of failed loads; once a second."""
        now = time.monotonic()
        expired = Expired([], [])
        with self._condition:
            for resident in self._residents.values():
                if resident.status == "failed" and now - resident.failed_at > FAILED_FOR_S:
                    resident.status = "unloading"
                    expired.failed.append(resident)
                elif resident.is_expired(now):
                    self._begin_unload(resident, f"it was not used for {resident.effective_keep_alive_s:g} s")
                    expired.idle.append(resident)
        return expired

    # --- loads

    def next_to_load(self) -> Resident | None:
        """Wait for a model that is to be loaded; None: the worker stops."""
        with self._condition:
            self._condition.wait_for(lambda: self._to_load or self._closing)
            return None if self._closing else self._to_load.popleft()

    def report_progress(self, resident: Resident, share: float, stage: str = "") -> None:
        """Record how far a load is."""
        with self._condition:
            resident.progress, resident.stage = min(max(share, 0.0), 1.0), stage

    def reserve(self, resident: Resident, plan: LoadPlan, *, deadline: float) -> Resident | None:
        """Wait until a model fits, and reserve its memory.

        Args:
            deadline: Monotonic time until which models in the way may take to go.

        Returns:
            A model that has to be unloaded first; None: the memory is reserved.

        Raises:
            ModelLoadFailed: The model can't fit, or the deadline has passed.
        """
        needed, budget = plan.needed_bytes, self._budget_bytes
        if needed > budget:
            raise ModelLoadFailed(
                f"{plan.name} needs {format_bytes(needed)}, the memory budget of this worker is "
                f"{format_bytes(budget)}; raise BLAZR_MEMORY_BUDGET, or lower max_model_len or dtype of the model."
            )
        with self._condition:
            while True:
                now = time.monotonic()
                others = [item for item in self._residents.values() if item is not resident]
                step = next_eviction_step(
                    needed, others, budget_bytes=budget, min_residence_s=self._min_residence_s, now=now
                )
                if step.action == "fits":
                    resident.memory_bytes = needed
                    return None
                if step.action == "never":
                    raise ModelLoadFailed(
                        f"{plan.name} needs {format_bytes(needed)}, and models that stay loaded take "
                        f"{format_bytes(sum(item.memory_bytes for item in others))} of this worker's "
                        f"{format_bytes(budget)}; unload one of them, or raise BLAZR_MEMORY_BUDGET."
                    )
                if step.victim is not None:
                    reason = f"{plan.name} needed {format_bytes(needed)} and it was used least recently"
                    self._begin_unload(step.victim, reason)
                    return step.victim
                if self._closing or now >= deadline:
                    raise ModelLoadFailed(
                        f"{plan.name} waits for memory that other models still use; try again later.",
                        retry_after_s=10,
                    )
                wake_at = deadline if step.wait_until is None else min(deadline, step.wait_until)
                self._condition.wait(max(wake_at - now, 0.001))

    def mark_ready(
        self, resident: Resident, plan: LoadPlan, engine: Engine, *, memory_bytes: int, load_s: float
    ) -> tuple[list[ActiveRequest], bool]:
        """Record a finished load; returns the requests to start, and whether the model has to go again at once."""
        with self._condition:
            resident.plan, resident.engine, resident.memory_bytes = plan, engine, memory_bytes
            resident.status, resident.progress, resident.stage = "ready", 1.0, ""
            resident.last_used = resident.ready_at = time.monotonic()
            resident.load_s = load_s
            resident.pinned |= plan.pinned
            requests, resident.waiting = resident.waiting, []
            for request in requests:
                self._enter_engine(request)
            if resident.unload_requested:
                resident.pinned = False
                self._begin_unload(resident, "it was asked to go while it was loading")
            self._condition.notify_all()
            return requests, resident.unload_requested

    def mark_failed(self, resident: Resident, error: BlazrError) -> list[ActiveRequest]:
        """Record the error of a load, and free its memory; returns the requests that have to end with the error."""
        with self._condition:
            resident.status, resident.error, resident.failed_at = "failed", error, time.monotonic()
            resident.memory_bytes = 0
            self._condition.notify_all()
            return list(resident.waiting)

    # --- unloads

    def take_engine(self, resident: Resident) -> Engine | None:
        """Wait until the requests of an unloading model have ended, and take its engine; None: the worker stops."""
        with self._condition:
            self._condition.wait_for(lambda: not resident.num_in_engine or self._closing)
            if self._closing:
                return None
            engine, resident.engine = resident.engine, None
            return engine

    def remove(self, resident: Resident, *, has_messages: bool) -> bool:
        """Forget an unloading model whose engine is gone; load it again if it is wanted.

        Args:
            has_messages: Messages still wait in its queue.

        Returns:
            Whether it is loaded again, so that it has to be advertised.
        """
        checkpoint_id = resident.checkpoint_id
        with self._condition:
            del self._residents[checkpoint_id]
            self._condition.notify_all()  # its memory is free
            is_reloaded = bool(resident.waiting or resident.reload_requested or has_messages) and not self._closing
            if is_reloaded:
                successor = Resident(
                    checkpoint_id,
                    pinned=resident.pinned,
                    waiting=resident.waiting,
                    keep_alive_s=resident.keep_alive_s,
                )
                for request in successor.waiting:
                    request.resident = successor
                self._queue_load(successor)
            return is_reloaded

    # --- state

    def describe(self) -> tuple[ResidentModel, ...]:
        """Return the models as people see them."""
        with self._condition:
            found = [(item.describe(), item.engine) for item in self._residents.values() if not item.has_failed]
        return tuple(
            model
            if engine is None
            else replace(model, max_model_len=engine.llm.max_model_len, stats=engine.llm.stats())
            for model, engine in found
        )

    def fit(self, checkpoint_id: str, plan: LoadPlan) -> dict[str, Any]:
        """Return whether a model would fit, and the memory that it would take, as plain values."""
        with self._condition:
            others = [item for item in self._residents.values() if item.checkpoint_id != checkpoint_id]
            own = self._residents.get(checkpoint_id)
            is_here = own is not None and not own.has_failed
            return fit_report(plan, others, is_here=is_here, budget_bytes=self._budget_bytes)

    @property
    def departures(self) -> tuple[Departure, ...]:
        """The last models that were unloaded, oldest first."""
        with self._condition:
            return tuple(self._departures)

    @property
    def memory_bytes(self) -> int:
        """Memory that models take, and memory that is reserved for loads."""
        with self._condition:
            return sum(item.memory_bytes for item in self._residents.values())

    def engines(self) -> list[Engine]:
        """Return the engines of the models that are ready, or that still have requests."""
        with self._condition:
            return [item.engine for item in self._residents.values() if item.engine is not None]

    def drain(self, timeout_s: float) -> Drained:
        """Take nothing new, wait until the engines' requests have ended, and forget the other requests."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: not any(request.in_engine for request in self._requests.values()),
                max(0.0, deadline - time.monotonic()),
            )
            unfinished = list(self._requests)
            self._requests.clear()
            for resident in self._residents.values():
                resident.waiting.clear()
            return Drained(unfinished, self.engines())

    # --- with the lock held

    def _is_open(self, request: ActiveRequest) -> bool:
        return self._requests.get(request.request_id) is request

    def _enter_engine(self, request: ActiveRequest) -> None:
        resident = request.resident
        request.in_engine = True
        resident.num_in_engine += 1
        resident.num_interactive += request.is_interactive
        self._apply_back_pressure(resident)

    def _remove_request(self, request: ActiveRequest) -> None:
        del self._requests[request.request_id]
        resident = request.resident
        if request.in_engine:
            resident.num_in_engine -= 1
            resident.num_interactive -= request.is_interactive
            self._apply_back_pressure(resident)
        elif request in resident.waiting:
            resident.waiting.remove(request)
        resident.touch()
        self._condition.notify_all()

    def _apply_back_pressure(self, resident: Resident) -> None:
        """Keep as many waiting requests here as bridge a second, and leave the others to other workers.

        Kombu's blocking read takes up to a second to notice a queue that is consumed again. Jobs and lines of batches
        don't count: they give way in the engine, and must not keep interactive requests out of it.
        """
        if resident.plan is None or resident.status != "ready":
            return
        pause_at, resume_at = 2 * resident.plan.max_num_seqs, resident.plan.max_num_seqs * 3 // 2
        # With the lock held, or two threads could carry out their orders in the wrong order.
        if not resident.paused and resident.num_interactive >= pause_at:
            resident.paused = True
            self._presence.pause(resident.checkpoint_id)
        elif resident.paused and resident.num_interactive <= resume_at:
            resident.paused = False
            self._presence.resume(resident.checkpoint_id)

    def _queue_load(self, resident: Resident) -> None:
        self._residents[resident.checkpoint_id] = resident
        self._to_load.append(resident)
        self._condition.notify_all()

    def _begin_unload(self, resident: Resident, reason: str) -> None:
        """Let a ready model take no new requests; the caller has to unload it."""
        resident.status = "unloading"
        resident_s = round(time.monotonic() - resident.ready_at, 3)
        self._departures.append(
            Departure(resident.checkpoint_id, reason, resident.memory_bytes, resident_s, time.time())
        )
        logger.info("%s is going to be unloaded: %s", resident.name, reason)
