"""A model in memory and the requests that are on their way through it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from inference.engine.loop import EngineLoop
from inference.errors import BlazrError
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.plan import JOB_PRIORITY
from inference.values.states import ResidentModel
from inference.worker.interfaces import LoadPlan, OnEvents, OnFinished, ServedLLM

RATE_WINDOW_S = 5.0
BACKGROUND_PRIORITY = JOB_PRIORITY // 2
"""Half way between what interactive requests and jobs may have (100 up or down each)."""
MAX_RESIDENCE_S = 60.0
"""A load that took longer doesn't keep others out any longer."""


@dataclass(eq=False, slots=True)
class Route:
    """One request between ``submit`` and its end."""

    message: GenerateMessage
    on_events: OnEvents
    on_finished: OnFinished
    resident: Resident
    next_index: int = 0
    num_tokens: int = 0
    received_at: float = field(default_factory=time.time)
    counted: bool = False

    @property
    def is_interactive(self) -> bool:
        """Whether somebody waits for it, rather than a job or a batch."""
        return self.message["priority"] < BACKGROUND_PRIORITY


@dataclass(eq=False, slots=True)
class Resident:
    """One model; guarded by the manager's lock, and so are its routes."""

    checkpoint_id: str
    pinned: bool = False
    status: Literal["loading", "ready", "unloading", "failed"] = "loading"
    plan: LoadPlan | None = None
    llm: ServedLLM | None = None
    loop: EngineLoop[Any, GenerationEvent] | None = None
    progress: float = 0.0
    stage: str = "waiting"
    error: BlazrError | None = None
    failed_at: float = 0.0
    memory_bytes: int = 0
    active: int = 0
    interactive: int = 0
    paused: bool = False
    unload_asked: bool = False
    reload_asked: bool = False  # ordered while it was leaving
    ready_at: float = 0.0
    load_s: float = 0.0
    keep_alive_s: float | None = None  # as the last request that said something wants it
    last_used: float = field(default_factory=time.monotonic)
    last_used_at: float = field(default_factory=time.time)
    waiting: list[Route] = field(default_factory=list)
    tokens: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def has_failed(self) -> bool:
        """Its load failed; it is remembered for its error only, or being forgotten."""
        return self.status == "failed" or self.error is not None

    @property
    def wanted_keep_alive_s(self) -> float:
        """Seconds that it stays without a request; -1: for ever."""
        if self.pinned or self.plan is None:
            return -1
        return self.plan.keep_alive_s if self.keep_alive_s is None else self.keep_alive_s

    def stays_until(self, min_residence_s: float) -> float:
        """When it may make room for another model, on the monotonic clock."""
        if not min_residence_s:
            return 0.0
        return self.ready_at + max(min_residence_s, min(self.load_s, MAX_RESIDENCE_S))

    def forget_old_tokens(self, now: float) -> None:
        """Drop what the rate doesn't count any more."""
        while self.tokens and self.tokens[0][0] < now - RATE_WINDOW_S:
            self.tokens.popleft()

    def describe(self) -> ResidentModel:
        """The model as people see it."""
        plan, llm = self.plan, self.llm  # read once: an unload takes them away without the lock
        running = min(self.active, plan.max_num_seqs) if plan else 0
        now = time.monotonic()
        recent = [(at, count) for at, count in tuple(self.tokens) if at > now - RATE_WINDOW_S]
        return ResidentModel(
            checkpoint_id=self.checkpoint_id,
            status="loading" if self.status == "loading" else "ready",
            progress=self.progress,
            stage="unloading" if self.status == "unloading" else self.stage,
            memory_bytes=self.memory_bytes,
            num_running=running,
            num_waiting=self.active - running + len(self.waiting),
            last_used_at=self.last_used_at,
            tokens_per_s=sum(count for _, count in recent) / RATE_WINDOW_S,
            max_model_len=llm.max_model_len if llm else 0,
            keep_alive_s=self.wanted_keep_alive_s,
            stats=llm.stats() if llm else {},
            pinned=self.pinned,
            load_s=round(self.load_s, 3),
        )
