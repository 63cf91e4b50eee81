"""The runner against real rows and a scripted model manager: windows, crashes, retries, cancel, resume."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from django.db import OperationalError
from django.db.models import F

from inference.dialects.openai.requests import plan_from_body
from inference.errors import GenerationFailed, InvalidRequest, ModelLoadFailed, ModelLoading
from inference.jobs import hints
from inference.jobs import runner as job_runner
from inference.jobs.claims import MAX_ATTEMPTS
from inference.jobs.runner import JobRunner
from inference.jobs.selectors import job_error, job_result
from inference.jobs.services import JobRequest, job_cancel, jobs_submit
from inference.jobs.sweep import jobs_abandon, jobs_sweep
from inference.models import GenerationJob, JobChunk, JobState, UsageDay, UsageRecord
from inference.transport.crash_record import tokens_alone
from inference.values.plan import JOB_PRIORITY
from inference.values.principal import LOCAL
from tests.inference.jobs.submissions import lapse
from tests.inference.rows import make_checkpoint
from tests.inference.worker.scripted_manager import ScriptedManager


@pytest.fixture
def checkpoint_row(db):
    return make_checkpoint()


@pytest.fixture
def manager(checkpoint_row) -> ScriptedManager:
    return ScriptedManager(str(checkpoint_row.pk))


@pytest.fixture
def runner(manager, monkeypatch) -> JobRunner:
    # Turns are taken by hand, without a thread: every look happens at once.
    for name in ("POLL_S", "FLUSH_S", "HEARTBEAT_S", "SWEEP_S", "MIN_AGE_ELSEWHERE_S"):
        monkeypatch.setattr(job_runner, name, 0.0)
    monkeypatch.setattr(hints, "wake_workers", lambda: None)
    return JobRunner(manager, owner="w", window=3)


def submit(*prompts: str, **members: Any) -> list[GenerationJob]:
    requests = [
        JobRequest(plan_from_body("completion", {"model": "tiny", "prompt": prompt, **members})) for prompt in prompts
    ]
    return jobs_submit(requests=requests, principal=LOCAL)


def finish(manager: ScriptedManager, request_id: str) -> None:
    """Let a request generate a token and end."""
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "x", 1, finish_reason="stop", stop_reason=None)
    manager.done(request_id)


def fresh(row: GenerationJob) -> GenerationJob:
    row.refresh_from_db()
    return row


def test_a_job_runs_behind_interactive_requests_and_ends_with_its_answer(runner, manager):
    (row,) = submit("Hi", priority=5, logprobs=0)
    runner.turn()
    ((request_id, message),) = manager.messages.items()
    assert message["priority"] == JOB_PRIORITY + 5
    assert message["web_id"] == "jobs"
    assert message["params"]["seed"] is not None
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "Hel", 1, logprobs=[])
    runner.turn()
    assert (fresh(row).state, row.completion_tokens, row.prompt_tokens) == ("running", 1, 3)
    manager.tokens(request_id, "lo", 2, finish_reason="stop", stop_reason=None)
    manager.done(request_id)
    runner.turn()
    assert fresh(row).state == JobState.SUCCEEDED
    answer = job_result(row)
    assert answer["choices"][0]["text"] == "Hello"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == 5
    assert answer["id"].startswith("cmpl-")
    assert runner.num_running == 0
    assert JobChunk.objects.count() == 0


def test_the_window_is_a_limit(runner, manager):
    submit(*"abcde")
    runner.turn()
    assert runner.num_running == 3
    first = next(iter(manager.messages))
    manager.event(first, "start", prompt_tokens=1)
    manager.done(first)
    runner.turn()
    runner.turn()
    assert runner.num_running == 3
    assert len(manager.messages) == 4


def test_after_a_crash_the_job_goes_on_behind_the_stored_tokens(runner, manager, checkpoint_row):
    (row,) = submit("Hi")
    runner.turn()
    (request_id,) = manager.messages
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "Hel", 1, 2)
    runner.turn()
    # The process dies here; another one with the same name starts.
    jobs_abandon(owner="w")
    successor_manager = ScriptedManager(str(checkpoint_row.pk))
    successor = JobRunner(successor_manager, owner="w", window=3)
    successor.turn()
    ((second_id, message),) = successor_manager.messages.items()
    assert second_id != request_id
    assert message["delivered"] == [[1, 2]]
    assert message["attempt"] == 1
    assert message["params"]["seed"] == manager.messages[request_id]["params"]["seed"]
    successor_manager.event(second_id, "start", prompt_tokens=3)
    successor_manager.tokens(second_id, "lo", 3, finish_reason="length")
    successor_manager.done(second_id, completion=3)
    successor.turn()
    assert job_result(fresh(row))["choices"][0]["text"] == "Hello"
    # The dead one was only slow: nothing it says counts any more.
    manager.tokens(request_id, "WRONG", 9, finish_reason="length")
    manager.done(request_id)
    runner.turn()
    assert job_result(fresh(row))["choices"][0]["text"] == "Hello"
    assert row.completion_tokens == 3


def test_a_lost_lease_stops_the_work(runner, manager):
    (row,) = submit("Hi")
    runner.turn()
    (request_id,) = manager.messages
    GenerationJob.objects.filter(pk=row.pk).update(fence=99)
    runner.turn()
    assert manager.cancelled == [request_id]
    assert runner.num_running == 0


def test_cancel_reaches_a_running_job(runner, manager):
    (row,) = submit("Hi")
    runner.turn()
    (request_id,) = manager.messages
    manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(request_id, "x", 1)
    runner.turn()
    job_cancel(job_id=row.job_id, principal=LOCAL)
    runner.turn()
    assert manager.cancelled == [request_id]
    runner.turn()
    assert (fresh(row).state, row.completion_tokens) == (JobState.CANCELLED, 1)


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [
        (InvalidRequest("bad prompt"), "failed", 1),
        (ModelLoading("not yet", retry_after_s=60), "queued", 0),
        (ModelLoadFailed("no memory now", retry_after_s=60), "queued", 0),
        (GenerationFailed("broken", retry_after_s=60), "queued", 1),
    ],
)
def test_errors_end_or_delay_a_job_by_their_kind(runner, manager, error, state, attempts):
    (row,) = submit("Hi")
    runner.turn()
    (request_id,) = manager.messages
    manager.error(request_id, error)
    runner.turn()
    assert (fresh(row).state, row.attempts) == (state, attempts)
    assert job_error(row).message == error.message
    runner.turn()
    assert len(manager.messages) == 1


def test_a_job_waits_for_memory_that_other_models_use(runner, manager):
    (row,) = submit("Hi")
    for _ in range(2 * MAX_ATTEMPTS):
        runner.turn()
        (request_id,) = manager.messages.keys() - manager.ended
        manager.error(request_id, ModelLoadFailed("tiny waits for memory.", retry_after_s=10))
        runner.turn()
        assert (fresh(row).state, row.attempts) == ("queued", 0)
        GenerationJob.objects.update(not_before=None)


def test_a_suspect_runs_alone(runner, manager):
    innocent, suspect = submit("a", "b")
    GenerationJob.objects.filter(pk=suspect.pk).update(attempts=MAX_ATTEMPTS - 1)
    GenerationJob.objects.filter(pk=innocent.pk).update(attempts=1)
    runner.turn()
    assert [fresh(innocent).state, fresh(suspect).state] == ["queued", "running"]
    runner.turn()
    assert runner.num_running == 1
    (request_id,) = manager.messages
    assert manager.messages[request_id]["alone_tokens"] == tokens_alone(0)
    manager.event(request_id, "start", prompt_tokens=1)
    manager.done(request_id)
    runner.turn()
    runner.turn()
    assert [fresh(innocent).state, fresh(suspect).state] == ["running", "succeeded"]


def test_only_crashes_while_a_suspect_runs_alone_count(runner, manager):
    (row,) = submit("a")
    GenerationJob.objects.filter(pk=row.pk).update(attempts=MAX_ATTEMPTS - 1)

    def crash() -> None:
        jobs_abandon(owner="w")
        jobs_sweep()

    for _ in range(4):  # an operator kills the worker while the job waits for requests of clients
        manager.messages.clear()
        runner._running.clear()
        runner.turn()
        assert fresh(row).state == "running"
        assert not manager.started_alone
        crash()
        assert (fresh(row).state, row.attempts) == ("queued", MAX_ATTEMPTS - 1)
    manager.messages.clear()
    runner._running.clear()
    runner.turn()
    (request_id,) = manager.messages
    manager.on_alone(request_id)
    runner.turn()
    assert (manager.started_alone, fresh(row).attempts) == ([request_id], MAX_ATTEMPTS)
    crash()
    assert (fresh(row).state, row.attempts) == ("failed", MAX_ATTEMPTS)


def test_a_suspect_that_another_worker_has_does_not_start(runner, manager):
    (row,) = submit("a")
    GenerationJob.objects.filter(pk=row.pk).update(attempts=MAX_ATTEMPTS - 1)
    runner.turn()
    (request_id,) = manager.messages
    GenerationJob.objects.filter(pk=row.pk).update(fence=F("fence") + 1)
    manager.on_alone(request_id)
    runner.turn()
    assert (manager.started_alone, manager.cancelled) == ([], [request_id])
    assert fresh(row).attempts == MAX_ATTEMPTS - 1


def test_clients_do_not_wait_for_a_database_that_is_away(runner, manager, monkeypatch):
    (row,) = submit("a")
    GenerationJob.objects.filter(pk=row.pk).update(attempts=MAX_ATTEMPTS - 1)
    runner.turn()
    (request_id,) = manager.messages

    def away(**claim: object) -> bool:
        raise OperationalError("away")

    monkeypatch.setattr(job_runner, "job_mark_alone", away)
    manager.on_alone(request_id)
    with pytest.raises(OperationalError):
        runner.turn()
    assert manager.cancelled == [request_id]
    runner.turn()
    assert (fresh(row).state, row.attempts) == ("queued", MAX_ATTEMPTS - 1)


def test_no_job_is_claimed_while_a_request_of_a_client_runs_alone(runner, manager):
    (row,) = submit("a")
    manager.messages["client"] = {"request_id": "client", "alone_tokens": 5}
    runner.turn()
    assert fresh(row).state == "queued"
    manager.ended.add("client")
    runner.turn()
    assert fresh(row).state == "running"


def test_crashes_count_no_longer_once_an_attempt_gets_further(runner, manager):
    (row,) = submit("Hi")
    GenerationJob.objects.filter(pk=row.pk).update(attempts=1)
    runner.turn()
    (request_id,) = manager.messages
    manager.event(request_id, "start", prompt_tokens=1)
    for number in range(tokens_alone(0)):
        assert fresh(row).attempts == 2
        manager.tokens(request_id, "x", number)
        runner.turn()
    assert fresh(row).attempts == 1


def test_the_leases_of_held_jobs_are_renewed_however_long_a_step_takes(runner, manager):
    (row,) = submit("Hi")
    runner.turn()
    before = fresh(row).lease_until
    runner.turn()
    assert manager.messages
    assert fresh(row).lease_until > before


@pytest.mark.parametrize("events", [[{"type": "delta", "choice": 7, "attempt": 0}], [{"type": "delta"}], [{}], [5]])
def test_a_job_whose_stored_events_cannot_be_replayed_fails_and_stops_no_other(runner, manager, events):
    broken, other = submit("broken", "other")
    JobChunk.objects.create(job=broken, number=0, events=orjson.dumps(events).decode())
    GenerationJob.objects.filter(pk=broken.pk).update(num_chunks=1)
    for _ in range(3 * MAX_ATTEMPTS):
        runner.turn()
        for request_id in manager.messages.keys() - manager.ended:
            finish(manager, request_id)
        GenerationJob.objects.update(not_before=None)
    assert [fresh(broken).state, fresh(other).state] == ["failed", "succeeded"]
    assert len(manager.messages) == 1


def test_a_connection_lost_at_the_commit_of_events_stops_no_other_job(runner, manager, monkeypatch):
    plan = plan_from_body("completion", {"model": "tiny", "prompt": "Hi"})
    (streamed,) = jobs_submit(requests=[JobRequest(plan, keep_events=True)], principal=LOCAL)
    (other,) = submit("other")
    runner.turn()
    first, second = manager.messages
    manager.event(first, "start", prompt_tokens=3)
    manager.tokens(first, "Hel", 1, 2)
    append = job_runner.jobs_append

    def commit_and_fail(**values: Any) -> None:
        append(**values)
        raise OperationalError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(job_runner, "jobs_append", commit_and_fail)
        with pytest.raises(OperationalError):
            runner.turn()
    manager.tokens(first, "lo", 3, finish_reason="stop")
    manager.done(first)
    finish(manager, second)
    runner.turn()
    assert [fresh(streamed).state, fresh(other).state] == ["running", "succeeded"]
    assert runner.num_running == 0
    lapse()
    runner.turn()
    runner.turn()
    third = list(manager.messages)[-1]
    assert manager.messages[third]["delivered"] == [[1, 2]]
    manager.event(third, "start", prompt_tokens=3)
    manager.tokens(third, "lo", 3, finish_reason="stop", stop_reason=None)
    manager.done(third)
    runner.turn()
    assert job_result(fresh(streamed))["choices"][0]["text"] == "Hello"


def test_a_job_whose_events_cannot_be_stored_ends_its_attempt_and_stops_no_other_job(runner, manager):
    plan = plan_from_body("completion", {"model": "tiny", "prompt": "Hi"})
    request = JobRequest(plan, keep_events=True)
    jobs = jobs_submit(requests=[request, request], principal=LOCAL)
    runner.turn()
    broken, sound = manager.messages
    for request_id in (broken, sound):
        manager.event(request_id, "start", prompt_tokens=3)
    manager.tokens(broken, "\ud800", 1)  # half of a pair, which UTF-8 doesn't have
    manager.tokens(sound, "Hel", 1)
    runner.turn()
    assert JobChunk.objects.count() == 1
    manager.tokens(sound, "lo", 2, finish_reason="stop")
    manager.done(sound)
    runner.turn()
    assert sorted(fresh(job).state for job in jobs) == ["queued", "succeeded"]  # as after any error of ours
    assert manager.cancelled == [broken]


def test_a_job_whose_result_cannot_be_stored_fails_and_stops_no_other_job(runner, manager, monkeypatch):
    broken, other = submit("broken", "other")
    finish_job = job_runner.job_finish

    def finish_others(*, key: int, **values: Any) -> bool:
        if key == broken.pk:
            raise TypeError("str is not valid UTF-8")
        return finish_job(key=key, **values)

    monkeypatch.setattr(job_runner, "job_finish", finish_others)
    for _ in range(4 * MAX_ATTEMPTS):
        runner.turn()
        for request_id in manager.messages.keys() - manager.ended:
            finish(manager, request_id)
        GenerationJob.objects.update(not_before=None)
    assert fresh(other).state == JobState.SUCCEEDED
    assert fresh(broken).state == JobState.FAILED
    assert "internal error" in job_error(broken).message


def test_leases_are_renewed_while_an_end_cannot_be_stored(runner, manager, monkeypatch):
    ended, waiting = submit("ended", "waiting")
    runner.turn()
    finish(manager, next(iter(manager.messages)))
    before = fresh(ended).lease_until

    def fail(**_: Any) -> None:
        raise OperationalError("the table is locked")

    monkeypatch.setattr(job_runner, "job_finish", fail)
    with pytest.raises(OperationalError):
        runner.turn()
    assert fresh(ended).lease_until > before
    assert fresh(waiting).lease_until > before


def test_jobs_of_resident_models_are_taken_first(runner, manager, monkeypatch):
    monkeypatch.setattr(job_runner, "MIN_AGE_ELSEWHERE_S", 60.0)
    make_checkpoint("cold")
    (cold,) = jobs_submit(
        requests=[JobRequest(plan_from_body("completion", {"model": "cold", "prompt": "x"}))], principal=LOCAL
    )
    (warm,) = submit("y")
    runner.turn()
    assert [fresh(cold).state, fresh(warm).state] == ["queued", "running"]


@pytest.mark.django_db(transaction=True)
def test_the_thread_works_and_stops_in_good_order(manager, monkeypatch):
    import time

    runner = JobRunner(manager, owner="w", window=3)
    rows = submit("a", "b")
    runner.start()
    runner.wake()
    deadline = time.monotonic() + 60
    while len(manager.messages) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first, second = manager.messages
    manager.event(first, "start", prompt_tokens=1)
    manager.tokens(first, "x", 1, finish_reason="stop")
    manager.done(first)
    manager.event(second, "start", prompt_tokens=1)
    manager.tokens(second, "kept", 5)
    while fresh(rows[0]).state != JobState.SUCCEEDED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    runner.stop()
    assert (fresh(rows[1]).state, rows[1].attempts) == (JobState.QUEUED, 0)
    assert JobChunk.objects.filter(job=rows[1]).count() >= 1


def test_what_a_job_used_is_charged_once_with_its_end(runner, manager):
    done, failed, retried = submit("a", "b", "c")
    runner.turn()
    requests = list(manager.messages)
    for request_id in requests:
        manager.event(request_id, "start", prompt_tokens=3)
        manager.tokens(request_id, "x", 1)
    manager.tokens(requests[0], "y", 2, finish_reason="stop", stop_reason=None)
    manager.done(requests[0])
    manager.error(requests[1], InvalidRequest("no"))
    manager.error(requests[2], GenerationFailed("again"))
    runner.turn()
    runner.turn()
    charged = {item.request_id: item for item in UsageRecord.objects.all()}
    assert set(charged) == {f"job-{done.job_id.hex}", f"job-{failed.job_id.hex}"}
    record = charged[f"job-{done.job_id.hex}"]
    assert (record.tenant, record.model, record.endpoint, record.outcome) == ("local", "tiny", "job", "completed")
    assert (record.prompt_tokens, record.completion_tokens) == (3, 2)
    assert charged[f"job-{failed.job_id.hex}"].outcome == "invalid_request"
    assert fresh(retried).state in ("queued", "running")
    day = UsageDay.objects.get()
    assert (day.requests, day.completion_tokens) == (2, 3)
