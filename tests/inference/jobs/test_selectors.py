"""Jobs as callers see them: their own, filtered, paged."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from inference.errors import Conflict, GenerationFailed, InvalidRequest, UnknownRequest
from inference.jobs.claims import job_finish, jobs_claim
from inference.jobs.selectors import (
    job_counts,
    job_error,
    job_get,
    job_list,
    job_result,
    num_open,
    num_open_jobs,
    num_open_lines,
)
from inference.jobs.services import job_cancel
from inference.models import Batch, GenerationJob, JobState
from inference.values.principal import LOCAL, Principal
from tests.inference.jobs.submissions import KEY_A, KEY_B, request, submit

pytestmark = pytest.mark.usefixtures("model")


def test_callers_see_their_own_jobs_only():
    (mine,) = submit(principal=KEY_A)
    assert job_get(job_id=str(mine.job_id), principal=KEY_A).pk == mine.pk
    boss = Principal("key", "key:9", "boss", 9, scopes=frozenset({"admin"}))
    assert job_get(job_id=str(mine.job_id), principal=boss).pk == mine.pk
    with pytest.raises(UnknownRequest):
        job_get(job_id=str(mine.job_id), principal=LOCAL)
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


def test_a_result_is_there_once_the_job_has_succeeded():
    waiting, done, failed = submit(request("a"), request("b", priority=-1), request("c", priority=-2))
    claims = {job.job_id: job for job in jobs_claim(owner="w", limit=2)}
    for row, state, values in (
        (done, JobState.SUCCEEDED, {"result": {"id": "cmpl-1"}}),
        (failed, JobState.FAILED, {"error": GenerationFailed("broken.")}),
    ):
        claim = claims[row.job_id]
        assert job_finish(key=claim.key, fence=claim.fence, state=state, **values)
        row.refresh_from_db()
    with pytest.raises(Conflict, match="is queued"):
        job_result(waiting)
    assert job_result(done) == {"id": "cmpl-1"}
    with pytest.raises(GenerationFailed, match=r"broken\."):
        job_result(failed)
    assert job_error(waiting) is job_error(done) is None
    assert job_error(failed).message == "broken."


def test_open_jobs_and_lines_count_together_until_they_end():
    submit(request("a"), request("b"), principal=KEY_A)
    submit(principal=KEY_B)
    Batch.objects.create(
        tenant=KEY_A.tenant, endpoint="/v1/completions", num_lines=10, num_completed=3, num_failed=1,
        created_at=timezone.now(), expires_at=timezone.now() + timedelta(days=1),
    )  # fmt: skip
    assert (num_open_jobs(KEY_A.tenant), num_open_lines(KEY_A.tenant), num_open(KEY_A.tenant)) == (2, 6, 8)
    assert num_open(KEY_B.tenant) == 1
    jobs_claim(owner="w", limit=10)
    assert num_open(KEY_A.tenant) == 8
    GenerationJob.objects.update(state=JobState.CANCELLED, lease_until=None)
    Batch.objects.update(ended_at=timezone.now())
    assert num_open(KEY_A.tenant) == num_open("key:nobody") == 0
