"""Keep the table of this worker's models and requests, behind the worker's one lock.

Each change is one method of ``ResidentModels``. The method returns the actions that its caller takes without the lock:
start requests, end requests with an error, unload or advertise a model. Code under the lock calls only pure functions,
and ``Presence.pause`` and ``Presence.resume``, which only queue an order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from inference.errors import BlazrError, GenerationFailed, ModelLoadFailed
from inference.host.units import format_bytes
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.queue_place import StartOutlook
from inference.values.states import Departure, ResidentModel
from inference.worker.entry import Admission, EntryQueue
from inference.worker.eviction import next_eviction_step, too_large, too_large_beside
from inference.worker.fit import fit_report
from inference.worker.interfaces import LoadPlan, OnAlone, OnEvents, Presence
from inference.worker.outlook import record_end, start_outlook
from inference.worker.resident import ActiveRequest, Drained, Engine, Expired, Resident, Submission
from inference.worker.service_times import ServiceTimes

logger = logging.getLogger(__name__)

FAILED_FOR_S = 2.0
"""Seconds that further requests get the error of a failed load."""
MAX_DEPARTURES = 20


class ResidentModels:
    """The table of this worker's models and requests; all methods are thread-safe.

    Args:
        presence: Pauses and resumes the queue of a model that has enough requests.
        budget_bytes: Memory for all models together.
        min_residence_s: Minimum seconds from load to eviction; see ``ModelManager``.
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
        self._entry = EntryQueue()
        self._known_alone: ActiveRequest | None = None
        self._must_admit = False
        self._times: defaultdict[str, ServiceTimes] = defaultdict(ServiceTimes)

    # --- requests

    def add_request(self, message: GenerateMessage, on_events: OnEvents, on_alone: OnAlone | None = None) -> Submission:
        """Add a request, and queue the load of its model if needed.

        Raises:
            ValueError: A request with this id is running.
        """
        checkpoint_id, request_id = message["model"], message["request_id"]
        with self._condition:
            if request_id in self._requests:
                raise ValueError(f"request {request_id!r} is running already")
            resident = self._residents.get(checkpoint_id)
            is_new = resident is None and not self._closing
            if resident is None:
                resident = Resident(checkpoint_id)
            request = self._requests[request_id] = ActiveRequest(message, on_events, resident, on_alone=on_alone)
            resident.touch()
            resident.keep_alive_s = message.get("keep_alive_s", resident.keep_alive_s)
            if self._closing:
                return Submission(request, error=GenerationFailed("The worker is stopping; send the request again."))
            if resident.status == "failed":
                return Submission(request, error=resident.error)
            if resident.status == "ready":
                self._entry.add(request)
                self._must_admit = True
                return Submission(request)
            resident.waiting.append(request)
            if is_new:
                self._queue_load(resident)
            self._apply_back_pressure(resident)
            return Submission(request, is_new_model=is_new)

    def admit(self) -> Admission:
        """Take the requests that can enter their engines now; call it after each change of the requests."""
        if not self._must_admit:  # the usual case, without the lock
            return Admission([], None)
        with self._condition:
            requests = self._entry.admit()
            for request in requests:
                self._enter_engine(request)
            self._must_admit = self._entry.is_closed
            for resident in self._residents.values():
                self._apply_back_pressure(resident)
            if self._entry.alone is self._known_alone:
                return Admission(requests, None)
            self._known_alone = self._entry.alone
            return Admission(requests, self._known_alone.request_id if self._known_alone else "")

    @property
    def runs_alone(self) -> bool:
        """Whether a request runs alone, or waits to."""
        return self._entry.is_closed

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
        """Remove a request; False if it was removed before."""
        with self._condition:
            if not self._is_open(request):
                return False
            self._remove_request(request)
            return True

    def record_events(self, resident: Resident, events: list[GenerationEvent]) -> dict[OnEvents, list[GenerationEvent]]:
        """Record the events of one step, and remove the requests that end with them.

        Returns:
            The events of open requests, by the callable that receives them.
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
                request.count_tokens(count)
                self._entry.record_tokens(request)
                num_tokens += count
                groups.setdefault(request.on_events, []).append(event)
                if event["type"] in ("done", "error"):
                    record_end(request, event, self._times)
                    self._remove_request(request)
            if num_tokens:
                resident.token_counts.append((time.monotonic(), num_tokens))
        return groups

    def describe_requests(self) -> list[dict[str, Any]]:
        """Return the requests, oldest first, as plain values."""
        with self._condition:
            return [item.describe() for item in sorted(self._requests.values(), key=lambda item: item.received_at)]

    @property
    def num_requests(self) -> int:
        """Number of requests, waiting ones included."""
        with self._condition:
            return len(self._requests)

    # --- orders

    def request_load(self, checkpoint_id: str, *, pinned: bool) -> bool:
        """Queue the load of a model unless it is here; return whether the model must be advertised."""
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
            # A request for a loaded model means that Redis has lost its advertisement; advertise it again.
            return True

    def request_unload(self, checkpoint_id: str) -> Resident | None:
        """Order the unload of a model; return the model if its unload begins now."""
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
            self._begin_unload(resident, "an unload was requested")
            return resident

    def request_reload(self, checkpoint_id: str, reason: str) -> Resident | None:
        """Order a ready model to be loaded again, and to stay pinned if it is; return it if its unload begins now.

        A model that leaves is loaded again only if it leaves for that: an order to unload it stands.
        """
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is None or resident.status != "ready":
                return None
            resident.reload_requested = True
            self._begin_unload(resident, reason)
            return resident

    def wait_for_reload(self, request: ActiveRequest, reason: str) -> Resident | None:
        """Let a request that is being prepared wait for its model's next load.

        Returns:
            The model, if its unload begins now.
        """
        with self._condition:
            if not self._is_open(request):
                return None
            resident = request.resident
            self._entry.leave(request)
            request.in_engine = False
            resident.num_in_engine -= 1
            resident.num_interactive -= request.is_interactive
            resident.waiting.append(request)
            self._condition.notify_all()
            if resident.status != "ready":
                return None  # its unload has begun, and it is loaded again because a request waits
            resident.reload_requested = True  # the request may be cancelled meanwhile
            self._begin_unload(resident, reason)
            return resident

    def set_pinned(self, checkpoint_id: str, pinned: bool) -> bool:
        """Pin or unpin a model, which keeps it until an order to unload; False if the model isn't here."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            if resident is None:
                return False
            resident.pinned = pinned
            resident.last_used = time.monotonic()
            self._condition.notify_all()
            return True

    def expire(self) -> Expired:
        """Begin the unload of idle models, and the removal of failed loads; called once a second."""
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
        """Wait for the next model to load; None: the worker is stopping."""
        with self._condition:
            self._condition.wait_for(lambda: self._to_load or self._closing)
            return None if self._closing else self._to_load.popleft()

    def report_progress(self, resident: Resident, share: float, stage: str = "") -> None:
        """Record the progress of a load."""
        with self._condition:
            resident.progress, resident.stage = min(max(share, 0.0), 1.0), stage

    def reserve(self, resident: Resident, plan: LoadPlan, *, deadline: float) -> Resident | None:
        """Wait until a model fits, and reserve its memory.

        Args:
            deadline: Monotonic time until which other models may take to be unloaded.

        Returns:
            A model that must be unloaded first; None: the memory is reserved.

        Raises:
            ModelLoadFailed: The model can't fit, or the deadline has passed.
        """
        needed, budget = plan.needed_bytes, self._budget_bytes
        if needed > budget:
            raise too_large(plan, budget)
        with self._condition:
            while True:
                now = time.monotonic()
                others = [item for item in self._residents.values() if item is not resident]
                step = next_eviction_step(
                    needed, others, budget_bytes=budget, min_residence_s=self._min_residence_s, now=now
                )
                if step.action == "fits":
                    resident.memory_bytes, resident.reserved_at = needed, now
                    return None
                if step.action == "never":
                    raise too_large_beside(plan, others, budget)
                if step.victim is not None:
                    reason = f"needed {format_bytes(needed)} and it was used least recently"
                    self._begin_unload(step.victim, reason, plan.name)
                    resident.evicts = step.victim.name
                    return step.victim
                if self._closing or now >= deadline:
                    raise ModelLoadFailed(
                        f"{plan.name} waits for memory that other models still use; try again later.",
                        retry_after_s=10,
                    )
                resident.evictable_at = step.wait_until or 0.0
                wake_at = deadline if step.wait_until is None else min(deadline, step.wait_until)
                self._condition.wait(max(wake_at - now, 0.001))

    def mark_ready(
        self, resident: Resident, plan: LoadPlan, engine: Engine, *, memory_bytes: int, load_s: float
    ) -> bool:
        """Record a finished load, and admit its requests; return whether the model must be unloaded at once."""
        with self._condition:
            resident.plan, resident.engine, resident.memory_bytes = plan, engine, memory_bytes
            resident.status, resident.progress, resident.stage = "ready", 1.0, ""
            resident.last_used = resident.ready_at = time.monotonic()
            resident.load_s = load_s
            self._times[resident.checkpoint_id].load_s = resident.ready_at - resident.reserved_at
            resident.pinned |= plan.pinned
            for request in resident.take_waiting():
                self._entry.add(request)
            self._must_admit = True
            if resident.unload_requested:
                resident.pinned = False
                self._begin_unload(resident, "an unload was requested during its load")
            self._condition.notify_all()
            return resident.unload_requested

    def mark_failed(self, resident: Resident, error: BlazrError) -> list[ActiveRequest]:
        """Record the error of a load, and free its memory; return the requests that must end with the error."""
        with self._condition:
            resident.status, resident.error, resident.failed_at = "failed", error, time.monotonic()
            resident.memory_bytes = 0
            self._condition.notify_all()
            return list(resident.waiting)

    # --- unloads

    def take_engine(self, resident: Resident) -> Engine | None:
        """Wait for the end of an unloading model's requests, and take its engine; None: the worker is stopping."""
        with self._condition:
            self._condition.wait_for(lambda: not resident.num_in_engine or self._closing)
            if self._closing:
                return None
            engine, resident.engine = resident.engine, None
            return engine

    def remove(self, resident: Resident, *, has_messages: bool) -> bool:
        """Remove an unloading model without an engine; queue its load again if it is needed.

        Args:
            has_messages: Whether messages wait in the model's queue.

        Returns:
            Whether the model is loaded again and must be advertised.
        """
        checkpoint_id = resident.checkpoint_id
        with self._condition:
            del self._residents[checkpoint_id]
            if resident.paused:
                self._presence.resume(checkpoint_id)  # the next resident of this name begins without a pause
            self._condition.notify_all()  # its memory is free
            is_reloaded = bool(resident.waiting or resident.reload_requested or has_messages) and not self._closing
            if is_reloaded:
                successor = resident.successor()
                self._queue_load(successor)
                self._apply_back_pressure(successor)
            return is_reloaded

    # --- state

    def describe(self) -> tuple[ResidentModel, ...]:
        """Return the models in the form of the heartbeat."""
        with self._condition:
            found = [(item.describe(), item.engine) for item in self._residents.values() if not item.has_failed]
        return tuple(model if engine is None else engine.describe(model) for model, engine in found)

    def outlook(self, checkpoint_id: str, waiting_ids: Sequence[str]) -> StartOutlook:
        """Return when further requests of a model could start; ``waiting_ids`` as in ``start_outlook``."""
        with self._condition:
            resident = self._residents.get(checkpoint_id)
            table = self._residents.values(), self._requests.values()
            return StartOutlook() if resident is None else start_outlook(resident, *table, waiting_ids, self._times)

    def fit(self, checkpoint_id: str, plan: LoadPlan) -> dict[str, Any]:
        """Return whether a model would fit, and the memory that it would take, as plain values."""
        with self._condition:
            others = [item for item in self._residents.values() if item.checkpoint_id != checkpoint_id]
            own = self._residents.get(checkpoint_id)
            return fit_report(plan, others, own, budget_bytes=self._budget_bytes)

    @property
    def departures(self) -> tuple[Departure, ...]:
        """The last models that were unloaded, oldest first."""
        with self._condition:
            return tuple(self._departures)

    @property
    def memory_bytes(self) -> int:
        """Bytes that models take or that are reserved for loads."""
        with self._condition:
            return sum(item.memory_bytes for item in self._residents.values())

    def engines(self) -> list[Engine]:
        """Return the engines of all models that have one."""
        with self._condition:
            return [item.engine for item in self._residents.values() if item.engine is not None]

    def drain(self, timeout_s: float) -> Drained:
        """Refuse new requests, wait for the end of the engines' requests, and remove all other requests."""
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
            self._entry.clear()
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
            self._entry.leave(request)
            resident.num_in_engine -= 1
            resident.num_interactive -= request.is_interactive
        elif request in resident.waiting:
            resident.waiting.remove(request)
        else:
            self._entry.discard(request)
        self._apply_back_pressure(resident)
        resident.touch()
        self._condition.notify_all()

    def _apply_back_pressure(self, resident: Resident) -> None:
        """Pause a model's queue while this worker holds enough requests, so that other workers take the rest.

        The queues of all ready models are paused while a request runs alone. A model that isn't ready holds few of the
        messages that this worker may hold, so that it takes those of its ready models meanwhile.
        """
        must_pause = resident.must_pause() or (resident.status == "ready" and self._entry.is_closed)
        if must_pause != resident.paused:
            # Called under the lock, so that two threads can't queue their orders in the wrong order.
            resident.paused = must_pause
            (self._presence.pause if must_pause else self._presence.resume)(resident.checkpoint_id)

    def _queue_load(self, resident: Resident) -> None:
        self._residents[resident.checkpoint_id] = resident
        self._to_load.append(resident)
        self._condition.notify_all()

    def _begin_unload(self, resident: Resident, reason: str, evicted_for: str = "") -> None:
        """Mark a ready model as unloading, without new requests; the caller must unload it."""
        resident.status = "unloading"
        resident.waiting += self._entry.take_of(resident)
        lasted_s, now = round(time.monotonic() - resident.ready_at, 3), time.time()
        departure = Departure(resident.checkpoint_id, reason, resident.memory_bytes, lasted_s, now, evicted_for)
        self._departures.append(departure)
        logger.info("%s will be unloaded: %s", resident.name, departure.words())
