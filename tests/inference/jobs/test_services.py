"""Submissions and cancels: all or none, each key once, each limit held."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from django.db import connection, connections

from inference.dialects.openai.requests import plan_from_body
from inference.errors import (
    Conflict,
    IdempotencyKeyReused,
    InvalidRequest,
    RateLimitExceeded,
    StorageFull,
    UnknownModel,
)
from inference.jobs import hints, services
from inference.jobs.claims import (
    job_finish,
    jobs_claim,
    jobs_heartbeat,
)
from inference.jobs.services import JobRequest, job_cancel, jobs_submit
from inference.jobs.sweep import jobs_sweep
from inference.models import GenerationJob, JobState
from inference.values.limits import KeyLimits
from inference.values.principal import LOCAL
from inference.values.request_key import RequestKey
from models_registry.aliases import alias_promote
from tests.inference.jobs.submissions import KEY_A, KEY_B, lapse, request, submit
from tests.inference.rows import make_adapter

pytestmark = pytest.mark.usefixtures("model")


def test_submit_stores_a_plan_with_a_seed(model):
    (row,) = submit(request("Hi", temperature=0.5))
    assert row.state == JobState.QUEUED
    assert row.checkpoint_id == model.pk
    (claimed,) = jobs_claim(owner="w", limit=1)
    assert claimed.plan.params.seed is not None
    assert claimed.plan.params.temperature == 0.5
    assert claimed.plan.prompts[0]["text"] == "Hi"


def test_a_list_is_stored_as_a_whole_or_not_at_all():
    with pytest.raises(UnknownModel, match="job 1"):
        jobs_submit(
            requests=[request(), JobRequest(plan_from_body("completion", {"model": "other", "prompt": "x"}))],
            principal=LOCAL,
        )
    assert GenerationJob.objects.count() == 0


@pytest.mark.parametrize(
    ("members", "param"),
    [({"stream": True}, "stream"), ({"prompt": ["a", "b"]}, "prompt"), ({"prompt": [10**6]}, "prompt")],
)
def test_what_a_job_cannot_be(members, param):
    with pytest.raises(InvalidRequest) as caught:
        submit(request(**{"prompt": "x"} | members))
    assert caught.value.param == param


def test_a_job_is_counted_for_the_model_that_its_alias_means(model):
    alias_promote(name="prod", checkpoint=model)
    (row,) = submit(request(model="prod"))
    assert (row.model, str(row.checkpoint_id)) == ("tiny", str(model.pk))
    adapter = make_adapter(model)
    alias_promote(name="prod", checkpoint=model, adapter=adapter)
    (row,) = submit(request(model="prod"))
    assert row.model == "tiny:sql"


def test_same_idempotency_key_gives_the_same_job():
    (first,) = submit(request("Hi", "k"))
    (again,) = submit(request("Hi", "k"))
    assert again.job_id == first.job_id
    assert again.get_deferred_fields() == {"plan", "result"}, "a submission of thousands may be repeated"
    with pytest.raises(Conflict):
        submit(request("Ho", "k"))
    (other,) = submit(request("Ho", "k"), principal=KEY_A)
    assert other.job_id != first.job_id
    twice = submit(request("a", "x"), request("a", "x"))
    assert twice[0].job_id == twice[1].job_id
    assert GenerationJob.objects.count() == 3


def test_a_retry_gets_its_jobs_although_a_limit_is_reached_and_the_model_is_gone(model, monkeypatch):
    limited = replace(KEY_A, limits=KeyLimits(lines=3))
    key = RequestKey("a", "digest")
    jobs = [replace(request("Hi", f"k-{number}"), request_key=key) for number in range(2)]
    first = submit(*jobs, principal=limited)
    monkeypatch.setattr(services, "MAX_BYTES", 0)
    assert submit(*jobs, principal=limited) == first
    monkeypatch.undo()
    # Only the new one counts.
    (new,) = set(submit(*jobs, request("Ho", "other"), principal=limited)) - set(first)
    with pytest.raises(RateLimitExceeded, match=r"3 lines .* and 1 more"):
        submit(*jobs, request("Ho"), principal=limited)
    model.delete()
    assert submit(jobs[0], request("Ho", "other"), jobs[1], principal=limited) == [first[0], new, first[1]]
    with pytest.raises(IdempotencyKeyReused):
        submit(replace(jobs[0], request_key=RequestKey("a", "another")), principal=limited)
    with pytest.raises(Conflict):
        submit(request("Hi", "other"), principal=limited)
    assert GenerationJob.objects.count() == 3


def test_cancel_while_queued_running_and_finished():
    queued, running, done = submit(request("1"), request("2", priority=-1), request("3", priority=-2))
    jobs_claim(owner="w", limit=2)
    done.refresh_from_db()
    job_finish(key=done.pk, fence=done.fence, state=JobState.SUCCEEDED, result={})
    assert job_cancel(job_id=queued.job_id, principal=LOCAL).state == JobState.CANCELLED
    assert job_cancel(job_id=done.job_id, principal=LOCAL).state == JobState.SUCCEEDED
    assert job_cancel(job_id=running.job_id, principal=LOCAL).state == JobState.RUNNING
    running.refresh_from_db()
    beat = jobs_heartbeat(owner="w", held=[(running.pk, running.fence)])
    assert beat.cancelled == {(running.pk, running.fence)}
    lapse()  # and if its worker dies before it gets to it:
    assert jobs_sweep().cancelled == 1
    running.refresh_from_db()
    assert running.state == JobState.CANCELLED


@pytest.mark.django_db(transaction=True)
def test_same_key_from_two_threads_makes_one_job(model):
    found: list[str] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait(60)
        try:
            found.append(str(submit(request("Hi", "same"))[0].job_id))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert GenerationJob.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_hint_is_given_after_the_commit(model, monkeypatch):
    given = threading.Event()
    seen: list[bool] = []

    def hint() -> None:
        seen.append(connection.in_atomic_block)
        given.set()

    monkeypatch.setattr(hints, "hint_jobs_sync", hint)
    submit()
    assert given.wait(60)
    assert seen == [False]


@pytest.mark.parametrize(
    ("limit", "whose", "other_may"),
    [("MAX_BYTES_PER_TENANT", "your stored jobs", True), ("MAX_BYTES", "the stored jobs of all callers", False)],
)
def test_jobs_above_a_limit_of_bytes_are_refused(monkeypatch, limit, whose, other_may):
    (row,) = submit(request(seed=7), principal=KEY_A)
    assert row.size_bytes == len(row.plan.encode()) > 0
    (job,) = jobs_claim(owner="w", limit=1)
    job_finish(key=job.key, fence=job.fence, state=JobState.SUCCEEDED, result={"text": "x" * 89})
    row.refresh_from_db()
    assert row.size_bytes == len(row.plan.encode()) + 100
    monkeypatch.setattr(services, limit, 2 * row.size_bytes - 100)
    assert submit(request(seed=7), principal=KEY_A)[0].pk > row.pk
    with pytest.raises(StorageFull, match=rf"{whose} have [\d,]+; the limit is [\d,]+ bytes.*RETENTION_DAYS"):
        submit(request(seed=7), principal=KEY_A)
    assert GenerationJob.objects.count() == 2
    if other_may:
        submit(request(seed=7), principal=KEY_B)
