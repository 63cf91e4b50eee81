"""Two real runners under every order of crashes, clock jumps, cancels, and lost, repeated and late hints (Hypothesis).

A run draws 400 schedules; a claim that forgot its fence was found after 5, 59 and 109 of three seeds. More of them,
2,000 or a recorded campaign of 100,000, are ``python -m tests.faults.job_schedules --schedules 2000``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from inference.dialects.openai.requests import plan_from_body
from inference.errors import GenerationFailed, InvalidRequest, ModelLoading, QueueFull
from inference.jobs import claims, hints
from inference.jobs import runner as job_runner
from inference.jobs.runner import JobRunner
from inference.jobs.selectors import job_result
from inference.jobs.services import JobRequest, job_cancel, jobs_submit
from inference.jobs.sweep import jobs_sweep
from inference.models import TERMINAL_JOB_STATES, GenerationJob, JobState
from inference.values.plan import GenerationPlan
from inference.values.principal import LOCAL
from tests.inference.rows import make_checkpoint
from tests.inference.worker.scripted_manager import ScriptedManager

SCHEDULES = int(os.environ.get("SCHEDULES", "400"))
SEED = os.environ.get("SCHEDULES_SEED")
STEPS = 20
TEXT = "abcdefgh"
"""What each job generates: its n-th token is n, whatever happened before."""
PROMPT_TOKENS = 3
WORKERS = st.sampled_from(["w1", "w2"])
ERRORS = (
    ModelLoading("not yet", retry_after_s=2),
    GenerationFailed("broken"),
    InvalidRequest("bad"),
    QueueFull("full"),
)
ENDS = frozenset(map(str, TERMINAL_JOB_STATES))
SAVEPOINTS = ("SAVEPOINT", "RELEASE", "ROLLBACK", "BEGIN", "COMMIT")


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def failing_at(number: int | None, error: type[BaseException]) -> Iterator[None]:
    """Raise before the statement of this number; a transaction around it is undone, as at a process's death."""
    left = number

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal left
        if left is not None and not sql.startswith(SAVEPOINTS):
            if left == 0:
                left = None
                raise error("here")
            left -= 1
        return run(sql, params, many, context)

    try:
        with connection.execute_wrapper(execute):
            yield
    finally:
        # A statement that fails outside of the product's transactions undoes nothing, but it marks the test's own.
        transaction.set_rollback(False)


def sql(statement: str) -> list[tuple[Any, ...]]:
    """Return the rows; Django takes longer to make a query than SQLite to run it."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


class Clock:
    """Stands in for the module ``time`` in the runner; all processes of the machine share it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now


CLOCK = Clock()


@cache
def _plan() -> GenerationPlan:
    return plan_from_body("completion", {"model": "tiny", "prompt": "p", "max_tokens": len(TEXT)})


class Worker:
    """A process with a runner and a scripted engine."""

    def __init__(self, name: str, checkpoint_id: str) -> None:
        self.manager = ScriptedManager(checkpoint_id)
        self.runner = JobRunner(self.manager, owner=name, window=3)
        self.made: dict[str, int] = {}

    def running(self) -> list[str]:
        """Requests in the engine."""
        open_ = [request_id for request_id in self.manager.messages if request_id not in self.manager.ended]
        return [request_id for request_id in open_ if request_id not in self.waiting()]

    def waiting(self) -> list[str]:
        """Requests whose turn to run alone hasn't come, or that haven't been started since."""
        suspects = [key for key, item in self.manager.messages.items() if "alone_tokens" in item]
        return [key for key in suspects if key not in self.manager.ended and key not in self.manager.started_alone]

    def generate(self, request_id: str, num: int) -> None:
        """Make the next tokens of a request; the last one ends it."""
        manager, message = self.manager, self.manager.messages[request_id]
        if request_id not in self.made:
            delivered = message.get("delivered") or [[]]
            assert delivered[0] == list(range(len(delivered[0]))), "an attempt begins behind exactly what was stored"
            self.made[request_id] = len(delivered[0])
            manager.event(request_id, "start", prompt_tokens=PROMPT_TOKENS)
        begin = self.made[request_id]
        end = self.made[request_id] = min(begin + num, len(TEXT))
        has_ended = end == len(TEXT)
        if begin < end:
            reason = {"finish_reason": "length"} if has_ended else {}
            manager.tokens(request_id, TEXT[begin:end], *range(begin, end), **reason)
        if has_ended:
            manager.done(request_id, PROMPT_TOKENS, end)


class Runners(RuleBasedStateMachine):
    """Jobs end once, with one charge and the whole text, in whatever order things happen."""

    def __init__(self) -> None:
        super().__init__()
        for table in ("jobchunk", "generationjob", "usagerecord", "usageday"):
            sql(f"DELETE FROM inference_{table}")
        CLOCK.now = 1000.0
        # A schedule begins as a process does.
        claims._resident_pages, claims._tenant_pages = claims.TenantPages(), claims.TenantPages()
        self.ends: dict[int, tuple[Any, ...]] = {}
        self.cancels: dict[int, int] = {}
        self.keys: set[int] = set()
        self.workers = {name: Worker(name, CHECKPOINT[0]) for name in ("w1", "w2")}

    @initialize()
    def begin(self) -> None:
        self.submit(2, None)

    @rule(number=st.integers(1, 2), key=st.sampled_from([None, "a"]))
    def submit(self, number: int, key: str | None) -> None:
        rows = jobs_submit(requests=[JobRequest(_plan(), key)] * (1 if key else number), principal=LOCAL)
        self.keys.update(row.pk for row in rows)

    @rule(name=WORKERS, at=st.none() | st.integers(0, 30), dies=st.booleans())
    def turn(self, name: str, at: int | None, dies: bool) -> None:
        """A turn, in which the process may die, or the database fail, at any statement."""
        worker, error = self.workers[name], Crash if dies else OperationalError
        beat_at = worker.runner._beat_at
        others, chunks = self._others(worker), self._chunks()
        try:
            with failing_at(at, error):
                worker.runner.turn()
        except Crash:
            self.restart(name)
        except OperationalError:
            pass  # as in TurnThread: the next turn tries again
        else:
            if worker.runner._beat_at != beat_at:
                self._cancels_arrived(worker)
        states = dict(sql("SELECT id, state FROM inference_generationjob"))
        # In a turn nothing is written for a job that was claimed in it.
        going = {key for key in others if states[key] not in ENDS}
        assert _of(going, self._chunks()) == _of(going, chunks), "a fenced attempt wrote, or events were lost"
        assert JobState.SUCCEEDED not in {states[key] for key in others}, "a fenced attempt ended a job"

    @rule(name=WORKERS, num=st.integers(1, 5), which=st.integers(0, 2))
    def generate(self, name: str, num: int, which: int) -> None:
        worker = self.workers[name]
        if running := worker.running():
            worker.generate(running[which % len(running)], num)

    @rule(name=WORKERS)
    def run_alone(self, name: str) -> None:
        """The engines are empty: the turn of a suspect has come."""
        worker = self.workers[name]
        for request_id in worker.waiting():
            worker.manager.on_alone(request_id)

    @rule(name=WORKERS, error=st.sampled_from(ERRORS))
    def fail(self, name: str, error: Any) -> None:
        worker = self.workers[name]
        if running := worker.running():
            worker.manager.error(running[0], error)

    @rule(name=WORKERS)
    def restart(self, name: str) -> None:
        """The process is killed; another one of its name starts."""
        self.workers[name] = Worker(name, CHECKPOINT[0])
        self.workers[name].runner._begin()

    @rule(name=WORKERS)
    def drain(self, name: str) -> None:
        self.workers[name].runner._hand_back()
        self.restart(name)

    @rule(name=WORKERS, times=st.integers(1, 3))
    def hint(self, name: str, times: int) -> None:
        """A hint arrives: late, again, or for nothing; most are lost."""
        for _ in range(times):
            self.workers[name].runner.wake()

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 3.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        CLOCK.now += seconds
        self.the_databases_clock_jumps(seconds)

    @rule(seconds=st.sampled_from([-3600.0, -5.0, 5.0, 11.0, 3600.0]))
    def the_databases_clock_jumps(self, seconds: float) -> None:
        """All times of the rows move the other way, which is the same."""
        passed = timedelta(seconds=seconds)
        GenerationJob.objects.update(lease_until=F("lease_until") - passed, not_before=F("not_before") - passed)

    @rule(at=st.none() | st.integers(0, 12))
    def sweep(self, at: int | None) -> None:
        """The sweep of another process, which may die in it."""
        try:
            with failing_at(at, Crash):
                jobs_sweep()
        except Crash:
            pass

    @rule(which=st.integers(0, 5), at=st.none() | st.integers(0, 6))
    def cancel(self, which: int, at: int | None) -> None:
        keys = [key for (key,) in sql("SELECT job_id FROM inference_generationjob ORDER BY id")]
        try:
            with failing_at(at, Crash):
                row = job_cancel(job_id=keys[which % len(keys)], principal=LOCAL)
                assert row.is_finished or row.cancel_requested
        except Crash:
            pass

    @invariant()
    def an_end_is_final(self) -> None:
        columns = "id, state, result, error, finished_at, lease_until, cancel_requested, fence"
        found = {row[0]: row[1:] for row in sql(f"SELECT {columns} FROM inference_generationjob")}
        assert set(found) == self.keys
        for key, (state, *values, lease_until, cancel_requested, fence) in found.items():
            assert (lease_until is not None) == (state == JobState.RUNNING)
            if cancel_requested:
                assert self.cancels.setdefault(key, fence) == fence, "a cancelled job was claimed again"
            else:
                assert key not in self.cancels, "a cancel was forgotten"
            if state in ENDS:
                assert self.ends.setdefault(key, (state, *values)) == (state, *values), "an end changed"
            else:
                assert key not in self.ends

    def teardown(self) -> None:
        """Whatever happened: one working process ends every job, and each has its text and one charge."""
        worker = Worker("last", CHECKPOINT[0])
        for number in range(200):
            self.time_passes(12.0)
            worker.runner.turn()
            if number == 0:
                # The other processes went on all the time, and some of their jobs are this one's by now.
                self._go_on(w1=3, w2=len(TEXT))
            for request_id in worker.waiting():
                worker.manager.on_alone(request_id)
            worker.runner.turn()
            for request_id in worker.running():
                worker.generate(request_id, len(TEXT))
            worker.runner.turn()
            if not {state for (state,) in sql("SELECT state FROM inference_generationjob")} - ENDS:
                break
        else:
            raise AssertionError("a job is stuck")
        self.an_end_is_final()
        # What the other processes still had to say comes now.
        self._go_on(w1=len(TEXT), w2=len(TEXT))
        self.an_end_is_final()
        assert not self._chunks()
        charges = dict(sql("SELECT request_id, completion_tokens FROM inference_usagerecord"))  # the ids are unique
        for row in GenerationJob.objects.all():
            charge = charges.pop(f"job-{row.job_id.hex}", 0)
            assert charge == row.completion_tokens <= len(TEXT)
            if row.state == JobState.SUCCEEDED:
                assert job_result(row)["choices"][0]["text"] == TEXT
                assert charge == len(TEXT)
        assert not charges
        ((total,),) = sql("SELECT COALESCE(SUM(completion_tokens), 0) FROM inference_usageday")
        ((made,),) = sql("SELECT SUM(completion_tokens) FROM inference_generationjob")
        assert total in (0, made)

    def _go_on(self, **tokens: int) -> None:
        """Let each of these workers make tokens of all its requests, and take a turn."""
        for name, num in tokens.items():
            for request_id in self.workers[name].running():
                self.workers[name].generate(request_id, num)
            self.turn(name, None, False)

    def _chunks(self) -> set[tuple[int, int, str]]:
        return set(sql("SELECT job_id, number, events FROM inference_jobchunk"))

    def _cancels_arrived(self, worker: Worker) -> None:
        """Call it after a heartbeat; what is claimed behind it has no cancel."""
        asked = {key for (key,) in sql("SELECT id FROM inference_generationjob WHERE cancel_requested")}
        for item in worker.runner._running.values():
            assert item.is_cancelled or item.job.key not in asked, "a heartbeat missed a cancel"

    def _others(self, worker: Worker) -> set[int]:
        """Running jobs that this worker doesn't hold, whatever it believes."""
        fences = {item.job.key: item.job.fence for item in worker.runner._running.values()}
        rows = sql("SELECT id, fence, state FROM inference_generationjob")
        return {key for key, fence, state in rows if state == JobState.RUNNING and fences.get(key) != fence}


def _of(jobs: set[int], chunks: set[tuple[int, int, str]]) -> set[tuple[int, int, str]]:
    return {row for row in chunks if row[0] in jobs}


CHECKPOINT: list[str] = []


@pytest.mark.slow
@pytest.mark.timeout(900 if SEED is None else 0)  # a campaign takes as long as it takes
def test_jobs_end_once_in_every_schedule(db, monkeypatch):
    # Within the test's own transaction each of the product's is a savepoint, also those that Django makes without.
    begin = transaction.Atomic.__init__
    monkeypatch.setattr(
        transaction.Atomic, "__init__", lambda self, using, savepoint, durable: begin(self, using, True, durable)
    )
    CHECKPOINT[:] = [str(make_checkpoint().pk)]
    monkeypatch.setattr(hints, "wake_workers", lambda: None)
    monkeypatch.setattr(job_runner, "time", CLOCK)
    run_state_machine_as_test(
        Runners if SEED is None else seed(int(SEED))(Runners),
        settings=settings(
            max_examples=SCHEDULES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_statement_that_fails_by_itself_undoes_nothing(db):
    checkpoint = make_checkpoint()
    with pytest.raises(OperationalError), failing_at(0, OperationalError):
        type(checkpoint).objects.update(path="elsewhere")
    assert type(checkpoint).objects.get().path == checkpoint.path


def test_a_crash_is_at_the_chosen_statement(db):
    for number in range(3):
        with pytest.raises(Crash), failing_at(number, Crash):
            for _ in range(3):
                GenerationJob.objects.exists()
    with failing_at(3, Crash):
        for _ in range(3):
            GenerationJob.objects.exists()
