"""The rules of queued jobs: submit, claim, fence, finish once, sweep, cancel."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.utils import timezone

from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.dialects.openai.requests import plan_from_body
from inference.errors import Conflict, GenerationFailed, InvalidRequest, QueueFull, UnknownModel, UnknownRequest
from inference.jobs import hints
from inference.jobs.claims import (
    MAX_ATTEMPTS,
    NewChunk,
    job_finish,
    job_release,
    jobs_append,
    jobs_claim,
    jobs_heartbeat,
    suspects_wait,
)
from inference.jobs.selectors import job_counts, job_error, job_get, job_list, job_result
from inference.jobs.services import JobRequest, job_cancel, jobs_submit
from inference.jobs.sweep import jobs_abandon, jobs_sweep
from inference.models import GenerationJob, JobChunk, JobState
from inference.values.principal import LOCAL, Principal
from tests.inference.rows import make_checkpoint

KEY_A = Principal("key", "key:1", "a", 1)
KEY_B = Principal("key", "key:2", "b", 2)


def request(prompt: str = "Hi", key: str | None = None, **members) -> JobRequest:
    return JobRequest(plan_from_body("completion", {"model": "tiny", "prompt": prompt, **members}), key)


def submit(*requests: JobRequest, principal: Principal = LOCAL, label: str = "") -> list[GenerationJob]:
    return jobs_submit(requests=requests or [request()], principal=principal, batch_label=label)


def lapse() -> None:
    """Let every lease run out."""
    GenerationJob.objects.filter(state=JobState.RUNNING).update(lease_until=timezone.now() - timedelta(seconds=1))


@pytest.fixture(autouse=True)
def model(db):
    return make_checkpoint()


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


def test_same_idempotency_key_gives_the_same_job():
    (first,) = submit(request("Hi", "k"))
    (again,) = submit(request("Hi", "k"))
    assert again.job_id == first.job_id
    with pytest.raises(Conflict):
        submit(request("Ho", "k"))
    (other,) = submit(request("Ho", "k"), principal=KEY_A)
    assert other.job_id != first.job_id
    twice = submit(request("a", "x"), request("a", "x"))
    assert twice[0].job_id == twice[1].job_id
    assert GenerationJob.objects.count() == 3


def test_claims_go_by_priority_then_arrival():
    rows = submit(request("1"), request("2", priority=-5), request("3"), request("4", priority=-5))
    order = [job.job_id for job in jobs_claim(owner="w", limit=3)]
    assert order == [rows[1].job_id, rows[3].job_id, rows[0].job_id]
    assert [job.job_id for job in jobs_claim(owner="w", limit=3)] == [rows[2].job_id]


def test_claims_can_be_limited_to_models_and_age(model):
    submit()
    other = make_checkpoint("other")
    assert jobs_claim(owner="w", limit=1, checkpoint_ids=[str(other.pk)]) == []
    assert jobs_claim(owner="w", limit=1, min_age_s=60) == []
    assert len(jobs_claim(owner="w", limit=1, checkpoint_ids=[str(model.pk)])) == 1


def test_chunks_come_back_with_the_next_claim():
    submit()
    (job,) = jobs_claim(owner="w1", limit=1)
    event = {"request_id": "r", "attempt": 0, "index": 0, "type": "delta", "text": "a\0b", "token_ids": [1]}
    assert jobs_append(chunks=[NewChunk(job.key, job.fence, 0, [event], 5, 1)]) == set()
    lapse()
    assert jobs_sweep().requeued == 1
    (again,) = jobs_claim(owner="w2", limit=1)
    assert again.fence == job.fence + 1
    assert again.chunks == ((event,),)
    # The first owner wakes up: nothing it writes arrives.
    late = NewChunk(job.key, job.fence, 1, [event], 5, 2)
    assert jobs_append(chunks=[late]) == {(job.key, job.fence)}
    assert not job_finish(key=job.key, fence=job.fence, state=JobState.SUCCEEDED, result={})
    assert not job_release(key=job.key, fence=job.fence)
    assert jobs_heartbeat(owner="w1", held=[(job.key, job.fence)]).held == frozenset()
    assert jobs_heartbeat(owner="w2", held=[(again.key, again.fence)]).held == {(again.key, again.fence)}


def test_finish_writes_once_and_cleans_up():
    (row,) = submit()
    (job,) = jobs_claim(owner="w", limit=1)
    jobs_append(chunks=[NewChunk(job.key, job.fence, 0, [], 5, 1)])
    assert job_finish(
        key=job.key,
        fence=job.fence,
        state=JobState.SUCCEEDED,
        result={"text": "\0"},
        prompt_tokens=5,
        completion_tokens=2,
    )
    assert not job_finish(key=job.key, fence=job.fence, state=JobState.FAILED, error=GenerationFailed("late"))
    row.refresh_from_db()
    assert (row.state, row.completion_tokens, row.lease_until, row.finished_at is not None) == (
        "succeeded",
        2,
        None,
        True,
    )
    assert job_result(row) == {"text": "\0"}
    assert JobChunk.objects.count() == 0


def test_three_crashes_without_progress_fail_the_job_with_a_reason():
    (row,) = submit()
    for _ in range(MAX_ATTEMPTS - 1):
        assert len(jobs_claim(owner="w", limit=1)) == 1
        lapse()
        assert jobs_sweep().requeued == 1
    assert suspects_wait()
    assert jobs_claim(owner="w", limit=1) == []
    assert len(jobs_claim(owner="w", limit=1, suspects=True)) == 1
    lapse()
    assert jobs_sweep().failed == 1
    row.refresh_from_db()
    assert row.state == JobState.FAILED
    assert "died 3 times" in job_error(row).message
    with pytest.raises(GenerationFailed):
        job_result(row)


def test_progress_starts_the_count_anew():
    submit()
    for number in range(2 * MAX_ATTEMPTS):
        (job,) = jobs_claim(owner="w", limit=1)
        assert not jobs_append(chunks=[NewChunk(job.key, job.fence, number, [], 5, number)])
        lapse()
        assert jobs_sweep().requeued == 1


def test_a_release_in_good_order_does_not_count_and_may_wait():
    (row,) = submit()
    for _ in range(2 * MAX_ATTEMPTS):
        (job,) = jobs_claim(owner="w", limit=1)
        assert job_release(key=job.key, fence=job.fence)
    (job,) = jobs_claim(owner="w", limit=1)
    assert job_release(key=job.key, fence=job.fence, error=QueueFull("full"), delay_s=60)
    assert jobs_claim(owner="w", limit=1) == []
    row.refresh_from_db()
    assert job_error(row).code == "queue_full"


def test_releases_that_count_end_in_failure():
    (row,) = submit()
    for _ in range(MAX_ATTEMPTS):
        (job,) = jobs_claim(owner="w", limit=1) or jobs_claim(owner="w", limit=1, suspects=True)
        assert job_release(key=job.key, fence=job.fence, error=GenerationFailed("again"), counts=True)
    row.refresh_from_db()
    assert (row.state, job_error(row).message) == ("failed", "again")


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


def test_jobs_of_a_revoked_key_end():
    row, _ = api_key_create(name="gone")
    running, queued = submit(request("1"), request("2"), principal=principal_of_tenant(f"key:{row.pk}"))
    (other,) = submit(request("3"))
    jobs_claim(owner="w", limit=1)
    assert jobs_sweep().cancelled == 0
    api_key_revoke(prefix=row.prefix)
    assert jobs_sweep().cancelled == 1
    for job in (running, queued, other):
        job.refresh_from_db()
    assert (queued.state, other.state) == (JobState.CANCELLED, JobState.QUEUED)
    beat = jobs_heartbeat(owner="w", held=[(running.pk, running.fence)])
    assert beat.cancelled == {(running.pk, running.fence)}


def test_callers_see_their_own_jobs_only():
    (mine,) = submit(principal=KEY_A)
    assert job_get(job_id=str(mine.job_id), principal=KEY_A).pk == mine.pk
    assert job_get(job_id=str(mine.job_id), principal=LOCAL).pk == mine.pk
    for job_id in (str(mine.job_id), "nonsense", "\0"):
        with pytest.raises(UnknownRequest):
            job_get(job_id=job_id, principal=KEY_B)
    assert job_list(principal=KEY_B) == []
    assert job_counts(principal=KEY_B)["queued"] == 0
    with pytest.raises(UnknownRequest):
        job_cancel(job_id=mine.job_id, principal=KEY_B)


def test_lists_are_filtered_and_paged():
    rows = submit(*(request(str(number)) for number in range(5)), label="batch")
    submit(label="other")
    listed = job_list(principal=LOCAL, batch_label="batch", limit=2)
    assert [row.pk for row in listed] == [rows[4].pk, rows[3].pk]
    rest = job_list(principal=LOCAL, batch_label="batch", before=listed[-1].pk)
    assert [row.pk for row in rest] == [rows[2].pk, rows[1].pk, rows[0].pk]
    assert job_counts(principal=LOCAL, batch_label="batch")["queued"] == 5
    with pytest.raises(InvalidRequest):
        job_list(principal=LOCAL, state="sleeping")


def test_a_worker_that_comes_back_gives_its_jobs_up_and_the_attempt_counts():
    (row,) = submit()
    jobs_claim(owner="w", limit=1)
    assert jobs_abandon(owner="w") == 1
    assert jobs_sweep().requeued == 1
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("queued", 1)


@pytest.mark.django_db(transaction=True)
def test_many_claimers_never_share_a_job(model):
    submit(*(request(str(number)) for number in range(60)))
    claimed: list[int] = []
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            while found := jobs_claim(owner=name, limit=3):
                claimed.extend(job.key for job in found)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(claimed) == len(set(claimed)) == 60


@pytest.mark.django_db(transaction=True)
def test_same_key_from_two_threads_makes_one_job(model):
    found: list[str] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait(10)
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
    assert given.wait(5)
    assert seen == [False]
