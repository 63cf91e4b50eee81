"""Stored responses: written, read by their owner only, deleted with their job, swept when they are old."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest
from django.utils import timezone

from inference.errors import NotFound, StorageFull
from inference.jobs.services import jobs_submit
from inference.models import GenerationJob, JobState, StoredResponse, UsageRecord
from inference.records import stored_responses
from inference.records.stored_responses import (
    response_bytes_check,
    response_delete,
    response_finish,
    response_get,
    response_store,
    responses_of,
    responses_sweep,
)
from tests.inference.jobs.submissions import KEY_A, KEY_B, request
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


def store(name: str = "resp_1", principal=KEY_A, job: GenerationJob | None = None) -> StoredResponse:
    body = {"id": name, "previous_response_id": None, "status": "in_progress"}
    return response_store(body=body, items=[{"role": "user", "content": "Hi"}], principal=principal, job=job)


def make_job() -> GenerationJob:
    make_checkpoint()
    (job,) = jobs_submit(requests=[request()], principal=KEY_A, batch_label="")
    return job


def test_a_response_is_read_as_it_was_stored():
    store()
    found = response_get(response_id="resp_1", principal=KEY_A)
    assert orjson.loads(found.body)["status"] == "in_progress"
    assert orjson.loads(found.input_items) == [{"role": "user", "content": "Hi"}]
    assert (found.tenant, found.previous_id, found.job) == ("key:1", "", None)
    response_finish(found, {"id": "resp_1", "status": "completed"})
    assert orjson.loads(response_get(response_id="resp_1", principal=KEY_A).body)["status"] == "completed"


@pytest.mark.parametrize("name", ["resp_1", "resp_2", "resp\0"])
def test_others_find_nothing(name):
    store()
    with pytest.raises(NotFound):
        response_get(response_id=name, principal=KEY_B)
    with pytest.raises(NotFound):
        response_delete(response_id=name, principal=KEY_B)
    assert not responses_of(KEY_B).exists()
    assert responses_of(KEY_A).count() == 1


def test_a_deleted_response_takes_its_job_with_it():
    store(job=make_job())
    response_delete(response_id="resp_1", principal=KEY_A)
    assert not StoredResponse.objects.exists()
    assert not GenerationJob.objects.exists()


def test_an_unfinished_job_that_goes_with_its_response_is_charged():
    store(job=make_job())
    GenerationJob.objects.update(prompt_tokens=3, completion_tokens=2)
    response_delete(response_id="resp_1", principal=KEY_A)
    (usage,) = UsageRecord.objects.all()
    assert (usage.tenant, usage.outcome, usage.prompt_tokens, usage.completion_tokens) == ("key:1", "cancelled", 3, 2)


def test_an_old_response_with_an_open_job_is_kept():
    store(job=make_job())
    StoredResponse.objects.update(created_at="2000-01-01T00:00:00Z")
    assert responses_sweep() == 0
    GenerationJob.objects.update(state=JobState.CANCELLED)
    assert responses_sweep() == 1


def test_old_responses_are_swept_in_parts(settings, monkeypatch):
    monkeypatch.setattr(stored_responses, "SWEEP_BATCH", 2)
    store("old_1", job=make_job())
    GenerationJob.objects.update(state=JobState.SUCCEEDED)
    for name in ("old_2", "old_3", "new"):
        store(name)
    old = timezone.now() - timedelta(days=8)
    StoredResponse.objects.filter(response_id__startswith="old").update(created_at=old)
    settings.BLAZR_RESPONSE_RETENTION_DAYS = 0
    assert responses_sweep() == 0
    settings.BLAZR_RESPONSE_RETENTION_DAYS = 7
    assert responses_sweep() == 3
    assert [row.response_id for row in StoredResponse.objects.all()] == ["new"]
    assert not GenerationJob.objects.exists()


def test_the_bytes_of_body_and_items_are_counted():
    row = store()
    assert row.size_bytes == len(row.body.encode()) + len(row.input_items.encode())
    response_finish(row, {"id": "resp_1", "status": "completed", "output": "é" * 10})
    assert StoredResponse.objects.get().size_bytes == len(row.body.encode()) + len(row.input_items.encode())


def test_a_response_above_the_caller_s_or_the_server_s_bytes_is_refused(monkeypatch):
    monkeypatch.setattr(stored_responses, "USED_CACHE_S", 0.0)
    used = store().size_bytes
    response_bytes_check(KEY_A)
    monkeypatch.setattr(stored_responses, "MAX_BYTES_PER_TENANT", used)
    with pytest.raises(
        StorageFull, match=f"Your stored responses have {used} bytes; the limit is {used} bytes. Delete"
    ):
        response_bytes_check(KEY_A)
    response_bytes_check(KEY_B)
    monkeypatch.setattr(stored_responses, "MAX_BYTES", used)
    with pytest.raises(StorageFull, match="of all callers have"):
        response_bytes_check(KEY_B)
    response_delete(response_id="resp_1", principal=KEY_A)
    response_bytes_check(KEY_A)


def test_the_sums_are_kept_for_seconds(monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(stored_responses, "_used", {})
    with django_assert_num_queries(2):
        for _ in range(5):
            response_bytes_check(KEY_A)
