"""Define the worker's thread that runs the lines of batches.

The thread keeps a bounded window of lines in the engines, with a priority below interactive requests, and writes
results in bulk. Lines are small, so a running line stores nothing, and starts again if its worker dies. Such lines are
retried after the other lines of their batch, in small groups, and the last time alone, so that a line that kills
workers fails without other lines.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import orjson
from django.db import DatabaseError, InterfaceError

from inference.access.api_keys import principal_of_tenant
from inference.access.start_limits import StartLimits
from inference.batches import claiming
from inference.batches.claiming import LineClaimer
from inference.batches.line_requests import LineRequest, line_request, refusal_line, unrun_line
from inference.batches.lines import (
    ClaimedLine,
    FinishedLine,
    line_mark_alone,
    lines_abandon,
    lines_finish,
    lines_heartbeat,
    lines_release,
)
from inference.batches.outcomes import ended_line
from inference.batches.unrun_lines import unrun_error
from inference.errors import (
    BlazrError,
    EngineDead,
    EngineError,
    GenerationFailed,
    PermissionRefused,
    Unavailable,
)
from inference.host.fault_points import fault_point
from inference.jobs import claim_runner
from inference.jobs.claim_runner import (
    HEARTBEAT_S,
    HINTED_HEARTBEAT_S,
    POLL_S,
    RETRY_DELAY_S,
    ClaimRunner,
    counts_as_attempt,
)
from inference.jobs.claims import MAX_ATTEMPTS
from inference.serving.image_parts import plan_with_images
from inference.serving.served_models import plan_for_model, served_model_of_checkpoint
from inference.states.services import plan_with_state
from inference.values.limits import estimate_tokens
from inference.values.messages import GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import JOB_PRIORITY, GenerationPlan
from inference.values.principal import LOCAL, UNAUTHENTICATED
from inference.values.served_model import ServedModel

logger = logging.getLogger(__name__)
Item = TypeVar("Item")

WINDOW = 128
"""Lines that a worker holds at once: twice the requests that an engine computes together by default."""
FLUSH_S = 0.2
FLUSH_LINES = 64
FLUSH_BYTES = 8 << 20
"""Limit in bytes besides that in lines, because results with vectors are large."""
WEB_ID = "batches"


class Manager(claim_runner.Manager, claiming.Manager, Protocol):
    """The part of ``inference.worker.model_manager.ModelManager`` that the runner uses."""


@dataclass(eq=False, slots=True)
class _Running:
    """One line that this worker holds; touched by the runner's thread only."""

    line: ClaimedLine
    request: LineRequest
    builder: OutputBuilder
    open_parts: set[str]
    outcome: BlazrError | None = None
    is_cancelled: bool = False


@dataclass(slots=True)
class _Outbox:
    """The results that wait for the next bulk write."""

    finished: list[FinishedLine] = field(default_factory=list)
    released: list[ClaimedLine] = field(default_factory=list)
    counted: list[tuple[ClaimedLine, float]] = field(default_factory=list)
    since: float = 0.0
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.finished) + len(self.released) + len(self.counted)

    def is_due(self, now: float) -> bool:
        """Whether to write now, because enough results wait or they have waited long enough."""
        return len(self) >= FLUSH_LINES or self.size_bytes >= FLUSH_BYTES or now - self.since >= FLUSH_S

    def claims(self) -> Iterator[tuple[int, int]]:
        yield from (item.line.claim for item in self.finished)
        yield from (line.claim for line in self.released)
        yield from (line.claim for line, _ in self.counted)


class BatchRunner(ClaimRunner):
    """Runs lines of batches on a worker's models.

    Args:
        manager: The worker's models.
        owner: The worker's id. Lines that an earlier process of this id held are given back at the start.
        window: The most lines that are held at once.
        on_idle: Called when all held lines are written, because a batch may be complete.
    """

    def __init__(
        self, manager: Manager, *, owner: str, window: int = WINDOW, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__("batches", "the lines of batches", owner=owner, window=window)
        self._on_idle = on_idle
        self._manager = manager
        self._running: dict[tuple[int, int], _Running] = {}
        self._parts: dict[str, tuple[_Running, int]] = {}
        self._outbox = _Outbox()
        self._unstarted: deque[ClaimedLine] = deque()
        self._limits = StartLimits()
        self._claimer = LineClaimer(manager, owner=owner, limits=self._limits)

    # --- the thread ----------------------------------------------------------------------------

    def _begin(self) -> None:
        lines_abandon(owner=self._owner)

    def _pause_s(self) -> float:
        return FLUSH_S if self._running else POLL_S

    def turn(self) -> None:
        """Do one round: take events, write results, renew leases, claim lines."""
        self._take_events()
        self._start_alone()
        now = time.monotonic()
        if len(self._outbox) and (not self._running or self._outbox.is_due(now)):
            self._flush()
        self._limits.flush()
        if now - self._beat_at >= (HINTED_HEARTBEAT_S if self._hinted and self._running else HEARTBEAT_S):
            self._hinted = False
            self._heartbeat(now)
        num_free = self._window - len(self._running) - len(self._outbox)
        if (self._look_now and num_free * 4 >= self._window) or now - self._claimed_at >= POLL_S:
            self._look_now = False
            self._claimed_at = now
            if not self._unstarted and not self._manager.runs_alone:
                is_empty = not self._running and not len(self._outbox)
                self._unstarted += self._claimer.claim(num_free, is_empty=is_empty)
            if self._unstarted:
                fault_point("lines.claimed")
                self._start()
                fault_point("lines.started")

    # --- events --------------------------------------------------------------------------------

    def _take_events(self) -> None:
        for event in self._received_events():
            found = self._parts.get(event["request_id"])
            if found is not None:
                self._take(*found, event)

    def _take(self, item: _Running, number: int, event: GenerationEvent) -> None:
        if event["type"] == "error":
            item.outcome = item.outcome or BlazrError.from_dict(event.get("error", {}))
        else:
            item.builder.add(number, event)
        if event["type"] not in ("done", "error"):
            return
        item.open_parts.discard(event["request_id"])
        self._parts.pop(event["request_id"], None)
        if item.outcome is not None:
            for request_id in list(item.open_parts):
                self._parts.pop(request_id, None)
                self._manager.cancel(request_id)
            item.open_parts.clear()
        if not item.open_parts:
            self._running.pop(item.line.claim, None)
            self._release(item)
            self._complete_line(item)

    def _complete_line(self, item: _Running) -> None:
        """Choose the outcome of a line whose last request has ended: a result, another attempt or a refusal."""
        line, error = item.line, item.outcome and item.request.translate_error(item.outcome)
        if error is None:
            payload, is_error = ended_line(
                item.request,
                item.builder,
                line_id=line.line_id,
                custom_id=line.custom_id,
                request_id=line.request_id,
            )
            self._finish(item, payload, is_error=is_error)
        elif item.is_cancelled:
            code, message = unrun_error(line.batch.ending)
            payload = unrun_line(line_id=line.line_id, custom_id=line.custom_id, code=code, message=message)
            # Without usage: the line says that it wasn't executed.
            self._put(self._outbox.finished, FinishedLine(line=line, payload=payload, is_error=True))
        elif isinstance(error, Unavailable | EngineError | EngineDead):
            if counts_as_attempt(error):
                self._try_again(line, error)
            else:
                self._put(self._outbox.released, line)
        else:
            self._refuse(line, error)

    def _finish(self, item: _Running, payload: str, *, is_error: bool) -> None:
        usage = [part.usage for part in item.builder.prompts if part.usage is not None]
        queue_s = sum(part.get("queue_s", 0.0) for part in usage)
        finished = FinishedLine(
            line=item.line,
            payload=payload,
            is_error=is_error,
            prompt_tokens=item.builder.prompt_tokens,
            completion_tokens=item.builder.completion_tokens,
            cached_tokens=item.builder.cached_tokens,
            reasoning_tokens=item.builder.reasoning_tokens,
            queue_s=queue_s,
            engine_s=sum(part.get("duration_s", 0.0) for part in usage) - queue_s,
        )
        self._outbox.size_bytes += len(payload)
        self._put(self._outbox.finished, finished)

    def _refuse(self, line: ClaimedLine, error: BlazrError) -> None:
        payload = refusal_line(line_id=line.line_id, custom_id=line.custom_id, request_id=line.request_id, error=error)
        self._put(self._outbox.finished, FinishedLine(line=line, payload=payload, is_error=True))

    def _try_again(self, line: ClaimedLine, error: BlazrError) -> None:
        """Retry a line after an attempt that counts; the error of the last attempt is the result."""
        if line.attempt >= MAX_ATTEMPTS:
            self._refuse(line, error)
        else:
            self._put(self._outbox.counted, (line, float(error.retry_after_s or RETRY_DELAY_S)))

    def _put(self, box: list[Item], item: Item) -> None:
        if not len(self._outbox):
            self._outbox.since = time.monotonic()
        box.append(item)
        self._look_now = True

    # --- the database --------------------------------------------------------------------------

    def _flush(self) -> None:
        # Lines are dropped after the write, so that the next turn retries after a database error.
        box = self._outbox
        if box.finished:
            lost = lines_finish(finished=box.finished)
            fault_point("lines.finished")
            if lost:
                logger.warning("%d lines ended here, but another worker holds them by now", len(lost))
            self._claimer.ended(len(box.finished))
            box.finished, box.size_bytes = [], 0
        if box.released:
            _release(box.released, delay_s=RETRY_DELAY_S)
            box.released = []
        for delay_s in {delay for _, delay in box.counted}:
            claims = [line.claim for line, delay in box.counted if delay == delay_s]
            lines_release(claims=claims, counts=True, delay_s=delay_s)
        box.counted = []
        if not self._running:
            self._on_idle()

    def _heartbeat(self, now: float) -> None:
        self._beat_at = now
        if not (self._running or len(self._outbox) or self._unstarted):
            return
        beat = lines_heartbeat(owner=self._owner)
        for claim, item in list(self._running.items()):
            if claim not in beat.held:
                logger.warning("line %s is given up here: its lease was lost", item.line.line_id)
                self._drop(item)
            elif claim in beat.endings and not item.is_cancelled:
                item.is_cancelled = True
                item.line.batch.ending = beat.endings[claim]
                for request_id in list(item.open_parts):
                    self._manager.cancel(request_id)
        # A database error right after a claim leaves claimed lines that never started.
        strays = beat.held - self._running.keys() - {line.claim for line in self._unstarted}
        strays -= set(self._outbox.claims())
        if strays:
            logger.warning("%d lines were claimed and never started; they go back", len(strays))
            lines_release(claims=strays)

    def _release(self, item: _Running) -> None:
        tokens = item.builder.prompt_tokens + item.builder.completion_tokens
        self._limits.release(item.line.request_id, tokens=tokens)

    def _drop(self, item: _Running) -> None:
        self._running.pop(item.line.claim, None)
        self._release(item)
        for request_id in item.open_parts:
            self._parts.pop(request_id, None)
            self._manager.cancel(request_id)

    def _hand_back(self) -> None:
        self._take_events()
        self._flush()
        rest = list(self._running.values())
        for item in rest:
            self._drop(item)
        _release([*(item.line for item in rest), *self._unstarted])
        self._unstarted.clear()
        self._limits.flush()

    # --- the engines ---------------------------------------------------------------------------

    def _start(self) -> None:
        served: dict[tuple[str, str], ServedModel] = {}
        while self._unstarted:
            line = self._unstarted[0]
            try:
                request = line_request(
                    line.batch.endpoint, orjson.loads(line.body), key=f"{line.batch.batch_id}:{line.number}"
                )
                self._check_options(line, request)
                stored = request.plan.model, line.checkpoint_id
                if stored not in served:
                    served[stored] = served_model_of_checkpoint(*stored)
                request = request.resolved(partial(_resolve, model=served[stored], tenant=line.batch.tenant))
                if not self._limits.admit(line.batch.tenant, line.request_id, tokens=estimate_tokens(request.plan)):
                    self._queue_again(line.batch.tenant)
                    continue
                self._submit(line, request)
            except BlazrError as error:
                self._refuse(line, error)
            except (DatabaseError, InterfaceError):
                raise  # the line waits here until the database is back
            except Exception:
                logger.exception("line %s could not be started", line.line_id)
                self._try_again(
                    line, GenerationFailed("The request could not be started because of an internal error.")
                )
            self._unstarted.popleft()

    def _queue_again(self, tenant: str) -> None:
        """Give back the tenant's lines that haven't started, because its limit is reached."""
        mine = [line for line in self._unstarted if line.batch.tenant == tenant]
        _release(mine)
        self._unstarted = deque(line for line in self._unstarted if line.batch.tenant != tenant)

    def _check_options(self, line: ClaimedLine, request: LineRequest) -> None:
        """Refuse options that need a scope which the batch's caller lacks; reads the caller only if there are any."""
        priority, keep_alive_s = request.plan.priority, request.plan.keep_alive_s
        try:
            UNAUTHENTICATED.check_options(priority=priority, keep_alive_s=keep_alive_s)
        except PermissionRefused:
            caller = LOCAL if line.batch.is_from_here else principal_of_tenant(line.batch.tenant)
            caller.check_options(priority=priority, keep_alive_s=keep_alive_s)

    def _submit(self, line: ClaimedLine, request: LineRequest) -> None:
        plan = replace(request.plan, priority=request.plan.priority + line.batch.priority + JOB_PRIORITY)
        numbers = range(len(plan.prompts))
        names = [line.request_id if len(plan.prompts) == 1 else f"{line.request_id}-{number}" for number in numbers]
        item = _Running(line, request, OutputBuilder(plan), set(names))
        self._running[line.claim] = item
        for number, request_id in enumerate(names):
            self._parts[request_id] = (item, number)
        try:
            for number, request_id in enumerate(names):
                message = plan.message(
                    number,
                    request_id=request_id,
                    web_id=WEB_ID,
                    checkpoint_id=line.checkpoint_id,
                    deadline=line.batch.expires_at.timestamp(),
                    owner=line.batch.tenant,
                    attempt=line.fence - 1,
                )
                if line.attempt >= MAX_ATTEMPTS:
                    message["alone_tokens"] = sys.maxsize  # to its end, because it starts from its beginning
                self._manager.submit(message, self._on_events, self._on_alone)
        except Exception:
            self._drop(item)
            raise

    def _count_and_start(self, request_id: str) -> None:
        found = self._parts.get(request_id)
        if found is None:
            return
        item, _ = found
        try:
            is_held = line_mark_alone(key=item.line.key, fence=item.line.fence)
        except (DatabaseError, InterfaceError):
            # The requests of clients wait behind this one: another attempt, when the database is back.
            self._drop(item)
            self._put(self._outbox.released, item.line)
            raise
        if is_held:
            self._manager.start_alone(request_id)
        else:
            self._drop(item)


def _release(lines: Sequence[ClaimedLine], *, delay_s: float = 0.0) -> None:
    last = {line.claim for line in lines if line.attempt >= MAX_ATTEMPTS}
    lines_release(claims=[line.claim for line in lines], last=last, delay_s=delay_s)


def _resolve(plan: GenerationPlan, *, model: ServedModel, tenant: str) -> GenerationPlan:
    return plan_with_state(plan_with_images(plan_for_model(plan, model), model, tenant), tenant)
