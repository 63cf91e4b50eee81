"""Run queued generations on the worker's models, in a thread of the worker.

The thread claims jobs while its window has free places, submits them to the model manager with a priority below all
interactive requests, stores the engine's events in chunks, and finishes each job once. Each write carries the claim's
fence, so that a thread that lost its lease can't change the job of its next owner. A job of a dead worker resumes
after its stored tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, transaction

from inference.access.start_limits import StartLimits
from inference.dialects.openai.outputs.formats import output_formatter
from inference.errors import BlazrError, EngineDead, EngineError, GenerationFailed, Unavailable
from inference.host.fault_points import fault_point
from inference.jobs.claim_runner import (
    HEARTBEAT_S,
    HINTED_HEARTBEAT_S,
    POLL_S,
    RETRY_DELAY_S,
    ClaimRunner,
    Manager,
    counts_as_attempt,
)
from inference.jobs.claims import (
    MAX_ATTEMPTS,
    ClaimedJob,
    NewChunk,
    job_finish,
    job_mark_alone,
    job_release,
    jobs_append,
    jobs_claim,
    jobs_heartbeat,
    suspect_tenants,
)
from inference.jobs.sweep import OPEN_JOBS, jobs_abandon, jobs_sweep
from inference.models import JobState
from inference.records.job_usage import job_usage_id
from inference.records.request_log import logged_contents
from inference.records.usage import Usage, usage_now, usage_store
from inference.transport.crash_record import tokens_alone
from inference.values.limits import estimate_tokens
from inference.values.messages import GenerateMessage, GenerationEvent
from inference.values.output_builder import OutputBuilder
from inference.values.plan import JOB_PRIORITY

logger = logging.getLogger(__name__)

WINDOW = 16
"""Jobs that a worker holds at once."""
FLUSH_TOKENS = 16
FLUSH_S = 0.25
SWEEP_S = 2.0
DEADLINE_S = 24 * 3600.0
MIN_AGE_ELSEWHERE_S = 1.0
"""Jobs of a model that is not resident here wait so long for a worker that has it."""
WEB_ID = "jobs"


@dataclass(eq=False, slots=True)
class _RunningJob:
    """One job that this worker holds; touched by the runner's thread only."""

    job: ClaimedJob
    builder: OutputBuilder
    num_chunks: int
    tokens_made: int = 0
    pending: list[GenerationEvent] = field(default_factory=list)
    pending_tokens: int = 0
    flushed_at: float = 0.0
    is_cancelled: bool = False
    outcome: BlazrError | None = None
    is_done: bool = False
    runs_alone: bool = False
    num_clearing: int = 0
    """Tokens that this attempt has to make until earlier crashes count no longer."""

    @property
    def claim(self) -> tuple[int, int]:
        return self.job.key, self.job.fence

    @property
    def is_counted(self) -> bool:
        return self.runs_alone or self.job.attempt < MAX_ATTEMPTS

    @property
    def has_ended(self) -> bool:
        return self.is_done or self.outcome is not None

    @property
    def is_retried(self) -> bool:
        """Whether the job goes back to the queue, because its error may not occur again."""
        return not self.is_cancelled and isinstance(self.outcome, Unavailable | EngineError | EngineDead)

    def add_event(self, event: GenerationEvent) -> None:
        if event["type"] == "error":
            self.outcome = BlazrError.from_dict(event.get("error", {}))
            return
        self.builder.add(0, event)
        if event["type"] == "done":
            self.is_done = True
            if not self.job.keep_events:
                return
        self.pending.append(event)
        num_tokens = len(event.get("token_ids", ()))
        self.pending_tokens += num_tokens
        self.tokens_made += num_tokens

    def is_due(self, now: float) -> bool:
        """Whether the pending events should be stored now."""
        return bool(self.pending) and (self.pending_tokens >= FLUSH_TOKENS or now - self.flushed_at >= FLUSH_S)

    def chunk(self) -> NewChunk:
        """Return the pending events as the next chunk."""
        return NewChunk(
            key=self.job.key,
            fence=self.job.fence,
            number=self.num_chunks,
            events=tuple(self.pending),
            prompt_tokens=self.builder.prompt_tokens,
            completion_tokens=self.builder.completion_tokens,
            clears_crashes=self.tokens_made >= self.num_clearing,
        )


class JobRunner(ClaimRunner):
    """Runs queued generations on a worker's models.

    Args:
        manager: The worker's models.
        owner: The worker's id. Jobs that an earlier process of this id held are given back at the start.
        window: The most jobs that are held at once.
    """

    def __init__(self, manager: Manager, *, owner: str, window: int = WINDOW) -> None:
        super().__init__("jobs", "the job table", owner=owner, window=window)
        self._manager = manager
        self._running: dict[str, _RunningJob] = {}
        self._limits = StartLimits()
        self._swept_at = 0.0

    # --- the thread ----------------------------------------------------------------------------

    def _begin(self) -> None:
        jobs_abandon(owner=self._owner)

    def _pause_s(self) -> float:
        return FLUSH_S / 2 if self._running else POLL_S / 2

    def turn(self) -> None:
        """Take events, store them, renew leases, finish jobs, claim jobs."""
        self._take_events()
        self._start_alone()
        now = time.monotonic()
        self._flush(now)
        if now - self._beat_at >= (HINTED_HEARTBEAT_S if self._hinted and self._running else HEARTBEAT_S):
            self._hinted = False
            self._heartbeat(now)
        self._finish_ended()
        self._limits.flush()
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            if OPEN_JOBS.exists():
                jobs_sweep()
        if self._look_now or now - self._claimed_at >= POLL_S:
            self._look_now = False
            self._claimed_at = now
            self._claim()

    def _take_events(self) -> None:
        for event in self._received_events():
            running = self._running.get(event["request_id"])
            if running is not None and not running.has_ended:
                running.add_event(event)

    def _flush(self, now: float) -> None:
        # A finished job needs no chunk, as its result goes into the row.
        due = [item for item in self._running.values() if not item.is_done and item.is_due(now)]
        if not due or self._append(due, now):
            return
        for item in due:
            if not self._append([item], now):
                item.pending.clear()
                item.outcome = GenerationFailed("Its events could not be stored because of an internal error.")
                self._manager.cancel(item.job.request_id)

    def _append(self, due: Sequence[_RunningJob], now: float) -> bool:
        """Store pending events; False: the values of one of the jobs can't be stored, and nothing was."""
        try:
            lost = jobs_append(chunks=[item.chunk() for item in due])
        except Exception as error:
            if _is_outage(error):
                raise  # the next turn tries again
            logger.exception("the events of %d jobs could not be stored", len(due))
            return False
        fault_point("job.flushed")
        for item in due:
            item.pending.clear()
            item.pending_tokens = 0
            item.num_chunks += 1
            item.flushed_at = now
            if item.claim in lost:
                self._drop(item, "its lease was lost")
        return True

    def _finish_ended(self) -> None:
        for item in [item for item in self._running.values() if item.has_ended]:
            try:
                self._store_end(item)
            except Exception as error:
                if _is_outage(error):
                    raise  # the next turn tries again
                logger.exception("the end of job %s could not be stored", item.job.job_id)
                if isinstance(item.outcome, GenerationFailed):
                    self._forget(item)  # its lease lapses
                else:
                    item.outcome = GenerationFailed("The result could not be stored because of an internal error.")

    def _store_end(self, item: _RunningJob) -> None:
        # Written before it is forgotten: after a database error the next turn tries again.
        with transaction.atomic():
            is_held = self._finish(item)
            fault_point("job.finish")
            if is_held and not item.is_retried:
                usage_store(records=[_usage(item)])
        fault_point("job.finished")
        if not is_held:
            logger.warning("job %s ended here, but its row has changed since", item.job.job_id)
        self._forget(item)
        self._look_now = True

    def _finish(self, item: _RunningJob) -> bool:
        """End a job or hand it back; False: its row has changed since."""
        job, builder, error = item.job, item.builder, item.outcome
        if error is not None and item.is_retried:
            return job_release(
                key=job.key,
                fence=job.fence,
                error=error,
                counts=counts_as_attempt(error),
                is_counted=item.is_counted,
                delay_s=float(error.retry_after_s or RETRY_DELAY_S),
            )
        state = JobState.SUCCEEDED if error is None else JobState.CANCELLED if item.is_cancelled else JobState.FAILED
        return job_finish(
            key=job.key,
            fence=job.fence,
            state=state,
            result=_result(item) if error is None else None,
            error=error if state == JobState.FAILED else None,
            prompt_tokens=builder.prompt_tokens,
            completion_tokens=builder.completion_tokens,
            last=item.chunk() if job.keep_events else None,
        )

    def _heartbeat(self, now: float) -> None:
        self._beat_at = now
        beat = jobs_heartbeat(owner=self._owner, held=[item.claim for item in self._running.values()])
        for item in list(self._running.values()):
            if item.claim not in beat.held:
                self._drop(item, "its lease was lost")
            elif item.claim in beat.cancelled and not item.is_cancelled:
                item.is_cancelled = True
                self._manager.cancel(item.job.request_id)

    def _drop(self, item: _RunningJob, why: str) -> None:
        logger.warning("job %s is given up here: %s", item.job.job_id, why)
        self._forget(item)
        self._manager.cancel(item.job.request_id)

    def _forget(self, item: _RunningJob) -> None:
        self._running.pop(item.job.request_id, None)
        tokens = item.builder.prompt_tokens + item.builder.completion_tokens
        self._limits.release(item.job.request_id, tokens=tokens)

    def _claim(self) -> None:
        num_free = self._window - len(self._running)
        if num_free <= 0 or self._manager.runs_alone:
            return
        if not OPEN_JOBS.exists():
            return
        claim = partial(jobs_claim, owner=self._owner, capacity=self._limits.capacity)
        if any(self._limits.capacity(tenant) != 0 for tenant in suspect_tenants()):
            # A suspect runs alone, once the window is empty. One over its key's limits holds up nobody.
            if not self._running:
                for job in claim(limit=1, suspects=True):
                    self._start(job)
            return
        resident = [model.checkpoint_id for model in self._manager.describe()]
        claimed = claim(limit=num_free, checkpoint_ids=resident) if resident else []
        if len(claimed) < num_free:
            claimed += claim(limit=num_free - len(claimed), min_age_s=MIN_AGE_ELSEWHERE_S)
        if claimed:
            fault_point("job.claimed")
        for job in claimed:
            self._start(job)

    def _start(self, job: ClaimedJob) -> None:
        item = _RunningJob(job, OutputBuilder(job.plan), num_chunks=len(job.chunks), flushed_at=time.monotonic())
        try:
            message, tokens = _message(item), estimate_tokens(job.plan)
        except Exception:
            # The attempt counts, so that this can't repeat for ever.
            logger.exception("the request of job %s can't be built from its row", job.job_id)
            item.outcome = EngineError("The stored job can't be run because of an internal error.")
            self._running[job.request_id] = item
            self._wake.set()
            return
        # The submission of a background response was its request.
        requests = 0 if job.keep_events else 1
        if not self._limits.admit(job.tenant, job.request_id, tokens=tokens, requests=requests):
            job_release(key=job.key, fence=job.fence, is_counted=job.attempt < MAX_ATTEMPTS)
            return
        self._running[job.request_id] = item
        try:
            self._manager.submit(message, self._on_events, self._on_alone)
            fault_point("job.started")
        except Exception:
            # Not the job's error, so the job goes back. The attempt counts, so that this can't repeat for ever.
            logger.exception("job %s could not be submitted", job.job_id)
            item.outcome = EngineError("The job could not be handed to the engine because of an internal error.")
            self._wake.set()

    def _count_and_start(self, request_id: str) -> None:
        item = self._running.get(request_id)
        if item is None or item.has_ended:
            return
        try:
            is_held = job_mark_alone(key=item.job.key, fence=item.job.fence)
        except (DatabaseError, InterfaceError):
            # The requests of clients wait behind this one: another attempt, when the database is back.
            item.outcome = Unavailable("The job's turn came while the database was away.")
            self._manager.cancel(request_id)
            raise
        if not is_held:
            self._drop(item, "its lease was lost")
            return
        item.runs_alone = True
        self._manager.start_alone(request_id)

    def _hand_back(self) -> None:
        self._take_events()
        self._flush(float("inf"))
        self._finish_ended()
        for item in list(self._running.values()):
            self._manager.cancel(item.job.request_id)
            job_release(key=item.job.key, fence=item.job.fence, is_counted=item.is_counted)
            self._forget(item)
        self._limits.flush()


def _message(item: _RunningJob) -> GenerateMessage:
    """Replay the stored events into the item's builder, and return the message that continues behind them."""
    job, builder = item.job, item.builder
    for chunk in job.chunks:
        for event in chunk:
            builder.add(0, event)
    item.num_clearing = tokens_alone(job.reach)
    plan = replace(job.plan, priority=job.plan.priority + JOB_PRIORITY)
    message = plan.message(
        0,
        request_id=job.request_id,
        web_id=WEB_ID,
        checkpoint_id=job.checkpoint_id,
        deadline=time.time() + DEADLINE_S,
        owner=job.tenant,
        attempt=job.fence - 1,
        delivered=builder.delivered(0) if job.chunks else None,
    )
    if job.attempt >= MAX_ATTEMPTS:
        message["alone_tokens"] = item.num_clearing
    return message


def _result(item: _RunningJob) -> dict[str, Any]:
    """Return the response body of a job that succeeded."""
    job = item.job
    prefix = "chatcmpl" if job.plan.endpoint == "chat" else "cmpl"
    request_id = f"{prefix}-{job.job_id.hex}"
    return output_formatter(job.plan, item.builder, request_id=request_id, created=job.created, model=job.model).whole()


def _is_outage(error: Exception) -> bool:
    """Whether the database failed, rather than the values that were to be stored."""
    return isinstance(error, DatabaseError | InterfaceError) and not isinstance(error, DataError | IntegrityError)


def _usage(item: _RunningJob) -> Usage:
    """Return the usage of an ended job, tokens of all its attempts; stored with its end, so charged once."""
    job, builder, error = item.job, item.builder, item.outcome
    times = next((prompt.usage for prompt in builder.prompts if prompt.usage is not None), None)
    duration_s, queue_s = (times.get("duration_s", 0.0), times.get("queue_s", 0.0)) if times else (0.0, 0.0)
    return Usage(
        request_id=job_usage_id(job.job_id),
        tenant=job.tenant,
        endpoint="job",
        model=job.model,
        outcome="completed" if error is None else "cancelled" if item.is_cancelled else error.code,
        prompt_tokens=builder.prompt_tokens,
        completion_tokens=builder.completion_tokens,
        cached_tokens=builder.cached_tokens,
        ttft_s=None,
        duration_s=duration_s,
        created_at=usage_now(),
        queue_s=queue_s,
        engine_s=duration_s - queue_s,
        cache_outcome=builder.cache_outcome,
        **logged_contents(builder),
    )
