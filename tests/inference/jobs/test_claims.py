"""Claims of jobs: order, fences, chunks, one end, attempts."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.errors import GenerationFailed, QueueFull
from inference.jobs import claims
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
from inference.jobs.selectors import job_error, job_result
from inference.jobs.sweep import jobs_sweep
from inference.models import GenerationJob, JobChunk, JobState
from inference.values.principal import LOCAL, Principal
from tests.inference.jobs.submissions import KEY_A, KEY_B, lapse, request, submit
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.usefixtures("model")


def test_claims_go_by_priority_then_arrival():
    rows = submit(request("1"), request("2", priority=-5), request("3"), request("4", priority=-5))
    order = [job.job_id for job in jobs_claim(owner="w", limit=3)]
    assert order == [rows[1].job_id, rows[3].job_id, rows[0].job_id]
    assert [job.job_id for job in jobs_claim(owner="w", limit=3)] == [rows[2].job_id]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads SQLite's query plans")
def test_a_claim_reads_no_more_of_a_longer_queue():
    """Each query of a claim goes through an index of queued or of running jobs, not through all jobs."""
    submit(*(request(str(number)) for number in range(4)))
    with CaptureQueriesContext(connection) as captured:
        assert len(jobs_claim(owner="w", limit=2)) == 2
    queries = [query["sql"] for query in captured if query["sql"].startswith("SELECT")]
    with connection.cursor() as cursor:
        plans = [row[3] for sql in queries for row in cursor.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]
    used = [plan for plan in plans if "inference_generationjob" in plan]
    assert used
    assert [plan for plan in used if "SCAN" in plan and "job_claim" not in plan and "job_leases" not in plan] == []


def order_of(rows, claimed):
    """Numbers of the claimed jobs among the rows."""
    return [[row.job_id for row in rows].index(job.job_id) for job in claimed]


def test_tenants_share_the_places(django_assert_max_num_queries):
    flood = submit(*(request(str(number)) for number in range(40)), principal=KEY_A)
    other = submit(request("41"), request("42"), principal=KEY_B)
    with django_assert_max_num_queries(12):
        claimed = jobs_claim(owner="w", limit=6)
    assert sorted(order_of([*flood, *other], claimed)) == [0, 1, 2, 3, 40, 41]
    late = submit(request("43"), request("44"), principal=LOCAL)
    assert sorted(order_of([*flood, *late], jobs_claim(owner="w2", limit=3))) == [4, 40, 41]


def test_a_better_priority_comes_before_shares():
    flood = submit(*(request(str(number)) for number in range(4)), principal=KEY_A)
    other = submit(request("5", priority=5), principal=KEY_B)
    assert order_of([*flood, *other], jobs_claim(owner="w", limit=3)) == [0, 1, 2]
    assert sorted(order_of([*flood, *other], jobs_claim(owner="w", limit=3))) == [3, 4]


def test_many_tenants_are_claimed_in_pages(monkeypatch):
    monkeypatch.setattr(claims, "MAX_TENANTS", 2)
    rows = [submit(request(), principal=Principal("key", f"key:{number}", "", number))[0] for number in range(5)]
    found = [order_of(rows, jobs_claim(owner="w", limit=2)) for _ in range(3)]
    assert sorted(number for numbers in found for number in numbers) == [0, 1, 2, 3, 4]


def test_a_page_with_one_tenant_leaves_the_others_jobs_to_their_pages(monkeypatch):
    monkeypatch.setattr(claims, "MAX_TENANTS", 2)
    monkeypatch.setattr(claims, "_tenant_pages", claims.TenantPages())
    flood = submit(*(request(str(number)) for number in range(9)), principal=Principal("key", "key:0", "", 1))
    others = [submit(request(), principal=Principal("key", f"key:{number}", "", number))[0] for number in (1, 2)]
    order_of([*flood, *others], jobs_claim(owner="w", limit=1))  # the first page: key:0 and key:1
    assert order_of([*flood, *others], jobs_claim(owner="w", limit=1)) == [10]


def test_claims_of_loaded_and_of_any_models_each_see_all_pages(model, monkeypatch):
    monkeypatch.setattr(claims, "MAX_TENANTS", 2)
    monkeypatch.setattr(claims, "_resident_pages", claims.TenantPages())
    monkeypatch.setattr(claims, "_tenant_pages", claims.TenantPages())
    make_checkpoint("other")
    callers = [Principal("key", f"key:{number}", "", number) for number in range(4)]
    cold = [submit(request(model="other"), principal=caller)[0].pk for caller in callers[:2]]
    warm = [submit(request(), principal=caller)[0].pk for caller in callers[2:]]
    resident: list[int] = []
    others: list[int] = []
    for _ in range(4):
        resident += [job.key for job in jobs_claim(owner="w", limit=1, checkpoint_ids=[str(model.pk)])]
        others += [job.key for job in jobs_claim(owner="w", limit=1)]
        GenerationJob.objects.filter(pk__in=warm).update(state=JobState.QUEUED, lease_until=None, attempts=0)
    assert set(cold) <= set(others)
    assert set(resident) <= set(warm)
    assert resident


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


def test_an_end_with_events_follows_the_stored_ones():
    (row,) = submit()
    (job,) = jobs_claim(owner="w", limit=1)
    jobs_append(chunks=[NewChunk(job.key, job.fence, 0, [])])
    repeated, following = (NewChunk(job.key, job.fence, number, [{"type": "done"}]) for number in (0, 1))
    assert not job_finish(key=job.key, fence=job.fence, state=JobState.SUCCEEDED, result={}, last=repeated)
    row.refresh_from_db()
    assert row.state == "running"
    assert job_finish(key=job.key, fence=job.fence, state=JobState.SUCCEEDED, result={}, last=following)


def test_an_attempt_that_gets_further_starts_the_count_anew():
    submit()
    for number in range(2 * MAX_ATTEMPTS):
        (job,) = jobs_claim(owner="w", limit=1)
        assert not jobs_append(chunks=[NewChunk(job.key, job.fence, number, [], 5, number, clears_crashes=True)])
        lapse()
        assert jobs_sweep().requeued == 1


def claim_and_start() -> ClaimedJob:
    (job,) = jobs_claim(owner="w", limit=1) or jobs_claim(owner="w", limit=1, suspects=True)
    if job.attempt == MAX_ATTEMPTS:
        assert job_mark_alone(key=job.key, fence=job.fence)
    return job


def test_a_job_that_kills_after_some_tokens_is_stopped():
    """It makes progress each time; without a limit it would kill workers for ever."""
    (row,) = submit()
    for number in range(MAX_ATTEMPTS):
        job = claim_and_start()
        event = {"request_id": job.request_id, "attempt": job.fence - 1, "index": 0, "type": "delta"}
        assert job.reach == (20 if number else 0)
        events = [event | {"token_ids": list(range(20))}]
        assert not jobs_append(chunks=[NewChunk(job.key, job.fence, number, events, 5, 20 * (number + 1))])
        lapse()
        jobs_sweep()
    row.refresh_from_db()
    assert row.state == "failed"


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
        job = claim_and_start()
        assert job_release(key=job.key, fence=job.fence, error=GenerationFailed("again"), counts=True)
    row.refresh_from_db()
    assert (row.state, job_error(row).message) == ("failed", "again")


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


def test_a_job_from_a_clock_that_is_ahead_waits_no_longer():
    (row,) = submit()
    assert jobs_claim(owner="w", limit=1, min_age_s=60) == []
    GenerationJob.objects.filter(pk=row.pk).update(created_at=timezone.now() + timedelta(hours=1))
    assert [job.key for job in jobs_claim(owner="w", limit=1, min_age_s=60)] == [row.pk]


def test_a_suspect_is_claimed_at_once_however_many_tenants_wait(monkeypatch):
    monkeypatch.setattr(claims, "MAX_TENANTS", 1)
    monkeypatch.setattr(claims, "_tenant_pages", claims.TenantPages())
    submit(principal=KEY_A)
    (suspect,) = submit(principal=KEY_B)
    GenerationJob.objects.filter(pk=suspect.pk).update(attempts=MAX_ATTEMPTS - 1)
    assert [job.key for job in jobs_claim(owner="w", limit=1, suspects=True)] == [suspect.pk]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads SQLite's query plans")
def test_a_look_for_suspects_reads_no_other_jobs():
    submit(*(request(str(number)) for number in range(4)))
    with CaptureQueriesContext(connection) as captured:
        assert suspect_tenants() == set()
    (query,) = captured
    with connection.cursor() as cursor:
        (plan,) = cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}").fetchall()
    assert "job_suspects" in plan[3], plan
