"""Rows of jobs: counts by state, the end, and what the database itself refuses."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from inference.models import GenerationJob, JobChunk, JobState

pytestmark = pytest.mark.django_db
CHECKPOINT = "0b5b6f1e-0d9a-4f5e-9b57-9b4f5b3f6d11"


def make_job(state: str = JobState.QUEUED, **columns: Any) -> GenerationJob:
    values = {
        "tenant": "local",
        "digest": "d" * 64,
        "endpoint": "chat",
        "model": "tiny",
        "checkpoint_id": CHECKPOINT,
        "plan": "{}",
        "created_at": timezone.now(),
        "lease_until": timezone.now() if state == JobState.RUNNING else None,
    }
    return GenerationJob.objects.create(state=state, **values | columns)


def refused(**columns: Any) -> bool:
    try:
        with transaction.atomic():
            make_job(**columns)
    except IntegrityError:
        return True
    return False


def test_states_without_jobs_count_nought():
    for state in ("queued", "queued", "failed"):
        make_job(state)
    counts = GenerationJob.objects.count_by_state()
    assert counts == {"queued": 2, "running": 0, "succeeded": 0, "failed": 1, "cancelled": 0}
    assert GenerationJob.objects.filter(state="failed").count_by_state()["queued"] == 0


@pytest.mark.parametrize("state", JobState.values)
def test_the_last_three_states_are_final(state):
    assert make_job(state).is_finished is (state in ("succeeded", "failed", "cancelled"))


def test_exactly_running_jobs_have_a_lease():
    assert refused(state=JobState.RUNNING, lease_until=None)
    assert refused(state=JobState.QUEUED, lease_until=timezone.now())
    assert not refused(state=JobState.RUNNING)


def test_a_tenant_has_one_job_of_an_idempotency_key():
    make_job(idempotency_key="a")
    assert refused(idempotency_key="a")
    assert not refused(idempotency_key="a", tenant="other")
    assert not refused() and not refused()


def test_chunks_come_in_order_and_go_with_their_job():
    job = make_job()
    for number in (2, 0, 1):
        JobChunk.objects.create(job=job, number=number, events="[]")
    assert [chunk.number for chunk in job.chunks.all()] == [0, 1, 2]
    with pytest.raises(IntegrityError), transaction.atomic():
        JobChunk.objects.create(job=job, number=1, events="[]")
    job.delete()
    assert not JobChunk.objects.exists()
