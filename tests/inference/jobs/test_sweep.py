"""Jobs whose worker or key is gone: requeued, failed or cancelled."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.access.account_changes import account_sign_in_change
from inference.access.accounts import principal_of_staff
from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.errors import GenerationFailed
from inference.jobs import sweep
from inference.jobs.claims import (
    LEASE_S,
    MAX_ATTEMPTS,
    NewChunk,
    job_mark_alone,
    job_release,
    jobs_append,
    jobs_claim,
    jobs_heartbeat,
    suspect_tenants,
)
from inference.jobs.selectors import job_error, job_result
from inference.jobs.services import job_cancel
from inference.jobs.sweep import SweepReport, finished_jobs_sweep, jobs_abandon, jobs_sweep
from inference.models import GenerationJob, JobChunk, JobState, StoredResponse, UsageDay, UsageRecord
from inference.values.principal import LOCAL
from tests.accounts import account
from tests.inference.jobs.submissions import lapse, request, submit
from tests.inference.row_locks import assert_in_order, on_postgresql, without_waiting
from tests.inference.rows import damage

pytestmark = pytest.mark.usefixtures("model")


def test_three_crashes_without_progress_fail_the_job_with_a_reason():
    (row,) = submit()
    for _ in range(MAX_ATTEMPTS - 1):
        assert len(jobs_claim(owner="w", limit=1)) == 1
        lapse()
        assert jobs_sweep().requeued == 1
    assert suspect_tenants() == {row.tenant}
    assert jobs_claim(owner="w", limit=1) == []
    assert len(jobs_claim(owner="w", limit=1, suspects=True)) == 1
    lapse()
    assert jobs_sweep().requeued == 1  # it hadn't run yet
    (job,) = jobs_claim(owner="w", limit=1, suspects=True)
    assert job_mark_alone(key=job.key, fence=job.fence)
    lapse()
    assert jobs_sweep().failed == 1
    row.refresh_from_db()
    assert row.state == JobState.FAILED
    assert "after 3 attempts" in job_error(row).message
    with pytest.raises(GenerationFailed):
        job_result(row)


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


def test_jobs_of_an_account_that_may_no_longer_sign_in_end():
    user = account("vera", "member")
    running, queued = submit(request("1"), request("2"), principal=principal_of_staff(user))
    (other,) = submit(request("3"), principal=principal_of_staff(account("nora", "member")))
    jobs_claim(owner="w", limit=1)
    assert jobs_sweep().cancelled == 0
    account_sign_in_change(actor=account("olga", "superuser"), account_id=user.pk, is_allowed=False)
    assert jobs_sweep().cancelled == 1
    for job in (running, queued, other):
        job.refresh_from_db()
    assert (queued.state, other.state) == (JobState.CANCELLED, JobState.QUEUED)
    assert running.cancel_requested and not other.cancel_requested


def test_a_worker_that_comes_back_gives_its_jobs_up_and_the_attempt_counts():
    (row,) = submit()
    jobs_claim(owner="w", limit=1)
    assert jobs_abandon(owner="w") == 1
    assert jobs_sweep().requeued == 1
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("queued", 1)


def store_tokens(row: GenerationJob, *, owner: str = "w") -> GenerationJob:
    """Claim a job and store its first events: 3 tokens of the prompt, 2 more."""
    (job,) = jobs_claim(owner=owner, limit=1)
    event = {"request_id": "r", "attempt": 0, "index": 0, "type": "delta", "token_ids": [1, 2]}
    assert not jobs_append(chunks=[NewChunk(job.key, job.fence, 0, [event], prompt_tokens=3, completion_tokens=2)])
    row.refresh_from_db()
    return row


def charged() -> list[tuple[str, int, int]]:
    return list(UsageRecord.objects.values_list("outcome", "prompt_tokens", "completion_tokens"))


def test_a_job_that_its_workers_crashed_on_is_charged_once_for_its_stored_tokens():
    (row,) = submit()
    store_tokens(row)
    GenerationJob.objects.update(attempts=MAX_ATTEMPTS)
    lapse()
    assert (jobs_sweep().failed, jobs_sweep().failed) == (1, 0)
    assert charged() == [("generation_failed", 3, 2)]
    day = UsageDay.objects.get()
    assert (day.tenant, day.model, day.requests, day.completion_tokens) == (row.tenant, "tiny", 1, 2)
    assert JobChunk.objects.count() == 0


def test_a_cancelled_job_of_a_dead_worker_is_charged():
    (row,) = submit()
    store_tokens(row)
    job_cancel(job_id=row.job_id, principal=LOCAL)
    lapse()
    report = jobs_sweep()
    assert (report.cancelled, report.requeued) == (1, 0)
    assert charged() == [("cancelled", 3, 2)]


def test_a_job_that_is_cancelled_while_it_waits_again_is_charged():
    (row,) = submit()
    store_tokens(row)
    lapse()
    assert jobs_sweep().requeued == 1
    assert job_cancel(job_id=row.job_id, principal=LOCAL).state == JobState.CANCELLED
    assert charged() == [("cancelled", 3, 2)]


def test_a_job_whose_last_attempt_is_handed_back_is_charged():
    (row,) = submit()
    store_tokens(row)
    GenerationJob.objects.update(attempts=MAX_ATTEMPTS)
    assert job_release(key=row.pk, fence=row.fence, error=GenerationFailed("no memory"), counts=True)
    assert charged() == [("generation_failed", 3, 2)]


def test_a_databases_clock_that_is_set_back_delays_no_job():
    """The times of its rows are then in the future: a dead worker's job waited for an hour."""
    held, waiting = submit(request("a"), request("b"))
    jobs_claim(owner="dead", limit=1)
    hour = timezone.now() + timedelta(hours=1)
    GenerationJob.objects.filter(pk=held.pk).update(lease_until=hour)
    GenerationJob.objects.filter(pk=waiting.pk).update(not_before=hour)
    jobs_sweep()
    held.refresh_from_db()
    assert held.state == JobState.RUNNING, "its worker may be alive, and has the time of a lease to say so"
    assert held.lease_until < timezone.now() + timedelta(seconds=LEASE_S + 1)
    assert [job.key for job in jobs_claim(owner="w", limit=2)] == [waiting.pk]


def test_jobs_without_tokens_are_ended_in_batches_and_not_charged(monkeypatch):
    monkeypatch.setattr("inference.jobs.sweep.END_BATCH", 2)
    submit(*(request(str(number)) for number in range(5)))
    GenerationJob.objects.update(cancel_requested=True)
    assert jobs_sweep().cancelled == 5
    assert charged() == []


def test_jobs_that_ended_long_ago_are_deleted_with_their_chunks(settings, monkeypatch):
    monkeypatch.setattr("inference.jobs.sweep.END_BATCH", 2)
    settings.BLAZR_RETENTION_DAYS = 7
    rows = submit(*(request(str(number)) for number in range(6)))
    old, now = timezone.now() - timedelta(days=8), timezone.now()
    of_response, recent, is_open = rows[3:]
    GenerationJob.objects.update(created_at=old, finished_at=old, state=JobState.SUCCEEDED, keep_events=True)
    GenerationJob.objects.filter(pk=recent.pk).update(finished_at=now)
    GenerationJob.objects.filter(pk=is_open.pk).update(finished_at=None, state=JobState.QUEUED)
    StoredResponse.objects.create(response_id="r", tenant="local", body="{}", job=of_response, created_at=now)
    JobChunk.objects.bulk_create(JobChunk(job=row, number=0, events="[]") for row in rows)
    assert finished_jobs_sweep() == 3
    kept = {of_response.pk, recent.pk, is_open.pk}
    assert set(GenerationJob.objects.values_list("pk", flat=True)) == kept
    assert set(JobChunk.objects.values_list("job", flat=True)) == kept
    GenerationJob.objects.update(finished_at=old)
    settings.BLAZR_RETENTION_DAYS = 0
    assert finished_jobs_sweep() == 0


@pytest.mark.parametrize("column", ["job_id", "plan", "events"])
def test_a_damaged_job_delays_no_other_and_is_given_up(column):
    jobs = [submit()[0] for _ in range(3)]
    chunk = JobChunk.objects.create(job=jobs[1], number=0, events="[]")
    damage(chunk if column == "events" else jobs[1], column, '{"cut')
    assert [job.key for job in jobs_claim(owner="w", limit=9)] == [jobs[0].pk, jobs[2].pk]
    state = GenerationJob.objects.filter(pk=jobs[1].pk).values_list("state", flat=True)
    assert jobs_sweep().failed == 1
    assert state.get() == JobState.FAILED
    assert GenerationJob.objects.filter(state=JobState.RUNNING).count() == 2


@pytest.mark.parametrize("members", [{"prompts": None}, {"params": 5}, {"params": {"top_n_sigma": 1000.0}}])
def test_a_job_whose_plan_cannot_be_rebuilt_delays_no_other_and_is_given_up(members):
    jobs = [submit()[0] for _ in range(3)]
    plan = orjson.dumps(orjson.loads(jobs[1].plan) | members).decode()
    GenerationJob.objects.filter(pk=jobs[1].pk).update(plan=plan)
    assert [job.key for job in jobs_claim(owner="w", limit=9)] == [jobs[0].pk, jobs[2].pk]
    assert jobs_sweep().failed == 1
    assert GenerationJob.objects.get(pk=jobs[1].pk).state == JobState.FAILED
    assert GenerationJob.objects.filter(state=JobState.RUNNING).count() == 2


@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads SQLite's query plans")
def test_a_sweep_reads_no_finished_jobs_and_writes_only_if_it_has_to():
    submit(*(request(str(number)) for number in range(4)))
    jobs_claim(owner="w", limit=2)
    with CaptureQueriesContext(connection) as idle:
        jobs_sweep()
    lapse()
    with CaptureQueriesContext(connection) as busy:
        assert jobs_sweep().requeued == 2
    assert {query["sql"].split()[0] for query in idle} == {"SELECT"}
    queries = [query["sql"] for query in (*idle, *busy) if query["sql"].startswith("SELECT")]
    with connection.cursor() as cursor:
        plans = [row[3] for sql in queries for row in cursor.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]
    of_jobs = [plan for plan in plans if "inference_generationjob" in plan]
    assert len(of_jobs) > 6
    assert [plan for plan in of_jobs if "job_claim" not in plan and "job_leases" not in plan] == []


def beat() -> None:
    jobs_heartbeat(owner="w", held=GenerationJob.objects.values_list("pk", "fence"))


@on_postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", [beat, lambda: jobs_abandon(owner="w"), jobs_sweep], ids=["beat", "abandon", "void"])
def test_jobs_are_locked_in_the_order_of_their_keys(monkeypatch, change):
    """``jobs_append`` locks several in that order: two that lock in other orders wait for each other."""
    first, second = submit(request("1"), request("2"))
    jobs_claim(owner="w", limit=2)
    monkeypatch.setattr(sweep, "void_tenants", list)
    assert_in_order(change, first, second)


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_sweep_requeues_jobs_without_waiting_for_those_that_are_written():
    written, lapsed = submit(request("1"), request("2"))
    jobs_claim(owner="w", limit=2)
    lapse()
    assert without_waiting(jobs_sweep, written) == SweepReport(requeued=1, failed=0, cancelled=0)
    lapsed.refresh_from_db()
    assert lapsed.state == JobState.QUEUED
    assert jobs_sweep().requeued == 1
