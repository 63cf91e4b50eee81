"""Define the state of a loaded model, of its engine and of its requests, and the results of changes to them."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from inference.engine.loop import EngineLoop
from inference.errors import BlazrError
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.plan import JOB_PRIORITY
from inference.values.states import ResidentModel
from inference.worker.interfaces import LoadPlan, OnAlone, OnEvents, ServedLLM

RATE_WINDOW_S = 5.0
BACKGROUND_PRIORITY = JOB_PRIORITY // 2
"""Halfway between the priorities of interactive requests and of jobs; each varies by up to 100."""
MAX_WAITING = 16
"""Requests of clients that wait for a load in this worker; the others wait in the model's queue."""
MAX_RESIDENCE_S = 60.0
"""Maximum seconds that a model stays because its load was slow."""


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """One request between ``submit`` and its end; guarded by the lock of ``ResidentModels``.

    Attributes:
        on_events: Called with the request's events.
        next_index: Index of the request's next event.
        num_tokens: Number of tokens generated so far.
        in_engine: Whether the request was admitted (``EntryQueue.admit``): it waits for a place, is prepared, or is in
            the engine. Otherwise it waits for a load or its entry.
        on_alone: As in ``ModelManager.submit``.
        first_token_at: Monotonic time of the first token; 0: there is none.
        waits: Seconds by what it waited for: ``swap`` (another model left), ``load``, ``turn`` (for a place in the
            engine and a thread), ``prepare`` (template and tokens).
        waits_since: Monotonic time at which the present wait began.
        evicted: Name of the model that was unloaded for it; empty: none.
    """

    message: GenerateMessage
    on_events: OnEvents
    resident: Resident
    next_index: int = 0
    num_tokens: int = 0
    received_at: float = field(default_factory=time.time)
    in_engine: bool = False
    on_alone: OnAlone | None = None
    first_token_at: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    waits_since: float = field(default_factory=time.monotonic)
    evicted: str = ""

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.message["request_id"]

    @property
    def alone_tokens(self) -> int | None:
        """New tokens for which the request must run alone; None: it need not."""
        return self.message.get("alone_tokens")

    @property
    def num_choices(self) -> int:
        """Sequences of the request in the engine."""
        return int(self.message["params"].get("n") or 1)

    def count_tokens(self, count: int) -> None:
        """Count generated tokens."""
        if count and not self.num_tokens:
            self.first_token_at = time.monotonic()
        self.num_tokens += count

    def end_wait(self, what: str, *, at: float | None = None) -> None:
        """Count the time since the last wait as a wait for ``what``, until now or the monotonic time ``at``."""
        now = time.monotonic() if at is None else at
        if now > self.waits_since:
            self.waits[what] = self.waits.get(what, 0.0) + now - self.waits_since
            self.waits_since = now

    def end_load(self, resident: Resident) -> None:
        """Count the wait for the load of a model that is ready now, and for the model that left before it."""
        if resident.evicts:
            self.evicted = resident.evicts
            self.end_wait("swap", at=resident.reserved_at)
        self.end_wait("load")

    @property
    def is_interactive(self) -> bool:
        """Whether a client waits for the request, rather than a job or a batch."""
        return self.message["priority"] < BACKGROUND_PRIORITY

    def describe(self) -> dict[str, Any]:
        """Return the request as plain values, for users."""
        return {
            "id": self.request_id,
            "owner": self.message.get("owner", ""),
            "checkpoint_id": self.message["model"],
            "state": "running" if self.next_index else "waiting",
            "tokens": self.num_tokens,
            "received_at": self.received_at,
        }


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model and the thread that runs it."""

    llm: ServedLLM
    loop: EngineLoop[Any, GenerationEvent]
    checkpoint_id: str = ""

    def describe(self, model: ResidentModel) -> ResidentModel:
        """Return a model in the form of the heartbeat, with what its engine knows."""
        return replace(model, max_model_len=self.llm.max_model_len, stats=self.llm.stats())


@dataclass(eq=False, slots=True)
class Resident:
    """One model of this worker; guarded by the lock of ``ResidentModels``.

    Attributes:
        plan, engine: Set once the model is ready.
        memory_bytes: Memory that the model takes, or that is reserved for its load.
        num_in_engine: Number of admitted requests; ``num_interactive``: those of clients.
        paused: Whether this worker reads no messages of the model's queue for now.
        unload_requested: Whether an unload was ordered while the model was loading.
        reload_requested: Whether the model is loaded again after its unload, even if no request waits for it.
        ready_at, last_used: Monotonic times.
        keep_alive_s: The option of the last request that set it; None: no request did.
        waiting: Requests that wait for this load, or for the next one.
        reserved_at: Monotonic time at which the memory of its load was reserved; 0: it wasn't.
        evicts: Name of the model that is or was unloaded for its load; empty: none.
        evictable_at: Monotonic time before which no other model can be unloaded for it.
        token_counts: (time, tokens) of the last steps, for the token rate.
    """

    checkpoint_id: str
    pinned: bool = False
    status: Literal["loading", "ready", "unloading", "failed"] = "loading"
    plan: LoadPlan | None = None
    engine: Engine | None = None
    progress: float = 0.0
    stage: str = "waiting"
    error: BlazrError | None = None
    failed_at: float = 0.0
    memory_bytes: int = 0
    num_in_engine: int = 0
    num_interactive: int = 0
    paused: bool = False
    unload_requested: bool = False
    reload_requested: bool = False
    ready_at: float = 0.0
    load_s: float = 0.0
    keep_alive_s: float | None = None
    last_used: float = field(default_factory=time.monotonic)
    last_used_at: float = field(default_factory=time.time)
    waiting: list[ActiveRequest] = field(default_factory=list)
    reserved_at: float = 0.0
    evicts: str = ""
    evictable_at: float = 0.0
    token_counts: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def name(self) -> str:
        """The served model name; before the load plan exists, the checkpoint's id."""
        return self.plan.name if self.plan else self.checkpoint_id

    @property
    def has_failed(self) -> bool:
        """Whether the load has failed."""
        return self.status == "failed" or self.error is not None

    @property
    def effective_keep_alive_s(self) -> float:
        """Seconds that the model stays without a request; -1: for ever."""
        if self.pinned or self.plan is None:
            return -1
        return self.plan.keep_alive_s if self.keep_alive_s is None else self.keep_alive_s

    def take_waiting(self) -> list[ActiveRequest]:
        """Remove and return the requests that waited for the load, which has ended."""
        taken, self.waiting = self.waiting, []
        for request in taken:
            request.end_load(self)
        return taken

    def successor(self) -> Resident:
        """Return the model to load in this one's place, which has left; its waiting requests go over."""
        found = Resident(self.checkpoint_id, pinned=self.pinned, waiting=self.waiting, keep_alive_s=self.keep_alive_s)
        for request in found.waiting:
            request.resident = found
        return found

    def touch(self) -> None:
        """Record that the model was used now."""
        self.last_used, self.last_used_at = time.monotonic(), time.time()

    def is_expired(self, now: float) -> bool:
        """Whether no request used the model for longer than its keep-alive time."""
        return (
            self.status == "ready"
            and not self.pinned
            and self.num_in_engine == 0
            and 0 <= self.effective_keep_alive_s < now - self.last_used
        )

    def stays_until(self, min_residence_s: float) -> float:
        """Return the monotonic time from which the model can be evicted."""
        if not min_residence_s:
            return 0.0
        return self.ready_at + max(min_residence_s, min(self.load_s, MAX_RESIDENCE_S))

    def must_pause(self) -> bool:
        """Whether this worker holds enough requests of clients; between the two limits nothing changes.

        A ready model keeps some waiting requests, because the intake takes up to a second to notice a resumed model
        while it waits for messages of others. Jobs and lines of batches don't count, because the engine preempts them
        for interactive requests. A failed load ends all requests with its error.
        """
        if self.status == "failed":
            return False
        if self.status == "ready" and self.plan is not None:
            number = self.num_interactive
            pause_at, resume_at = 2 * self.plan.max_num_seqs, self.plan.max_num_seqs * 3 // 2
        else:
            number = sum(request.is_interactive for request in self.waiting)
            pause_at, resume_at = MAX_WAITING, MAX_WAITING // 2
        return number > resume_at if self.paused else number >= pause_at

    def drop_old_token_counts(self, now: float) -> None:
        """Drop the steps before the window of the token rate."""
        while self.token_counts and self.token_counts[0][0] < now - RATE_WINDOW_S:
            self.token_counts.popleft()

    def describe(self) -> ResidentModel:
        """Return the model in the form of the heartbeat, without the engine's statistics."""
        running = min(self.num_in_engine, self.plan.max_num_seqs) if self.plan else 0
        self.drop_old_token_counts(time.monotonic())
        reserved = {} if self.engine is None else self.engine.llm.memory_bytes()
        return ResidentModel(
            checkpoint_id=self.checkpoint_id,
            status="loading" if self.status == "loading" else "ready",
            progress=self.progress,
            stage="unloading" if self.status == "unloading" else self.stage,
            memory_bytes=self.memory_bytes,
            states_bytes=reserved.get("states", 0),
            adapter_bytes=reserved.get("adapters", 0),
            num_running=running,
            num_waiting=self.num_in_engine - running + len(self.waiting),
            last_used_at=self.last_used_at,
            tokens_per_s=sum(count for _, count in self.token_counts) / RATE_WINDOW_S,
            keep_alive_s=self.effective_keep_alive_s,
            pinned=self.pinned,
            load_s=round(self.load_s, 3),
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of ``ResidentModels.add_request``.

    Attributes:
        error: Error with which the request must end.
        is_new_model: Whether the load of a new model was queued, and the model must be advertised.
    """

    request: ActiveRequest
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
