"""Jobs whose worker or key is gone: requeued, failed or cancelled."""

from __future__ import annotations

import pytest

from inference.access.api_keys import api_key_create, api_key_revoke, principal_of_tenant
from inference.errors import GenerationFailed
from inference.jobs.claims import (
    MAX_ATTEMPTS,
    jobs_claim,
    jobs_heartbeat,
    suspects_wait,
)
from inference.jobs.selectors import job_error, job_result
from inference.jobs.sweep import jobs_abandon, jobs_sweep
from inference.models import JobState
from tests.inference.jobs.submissions import lapse, request, submit

pytestmark = pytest.mark.usefixtures("model")


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


def test_a_worker_that_comes_back_gives_its_jobs_up_and_the_attempt_counts():
    (row,) = submit()
    jobs_claim(owner="w", limit=1)
    assert jobs_abandon(owner="w") == 1
    assert jobs_sweep().requeued == 1
    row.refresh_from_db()
    assert (row.state, row.attempts) == ("queued", 1)
