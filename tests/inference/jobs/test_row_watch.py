import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from inference.jobs.row_watch import RowWatch
from inference.models import GenerationJob, JobState, UsageRecord
from inference.records.usage import Usage, usage_now, usage_store

pytestmark = pytest.mark.django_db


def _record(request_id, prompt_tokens):
    return Usage(
        request_id=request_id,
        tenant="t",
        endpoint="completions",
        model="m",
        outcome="completed",
        prompt_tokens=prompt_tokens,
        completion_tokens=1,
        cached_tokens=0,
        ttft_s=None,
        duration_s=1.0,
        created_at=usage_now(),
    )


def test_a_watch_sees_rows_come_and_go():
    watch = RowWatch(lambda: UsageRecord.objects.filter(prompt_tokens__in=(3, 4), ttft_s=None).order_by("id"))
    assert not watch.exists()
    usage_store(records=[_record("a", 2)])
    assert not watch.exists()
    usage_store(records=[_record("b", 3), _record("c", 4)])
    assert watch.exists()
    UsageRecord.objects.filter(prompt_tokens__gte=3).delete()
    assert not watch.exists()


def test_the_question_is_put_together_once_and_asked_each_time():
    asked = []

    def rows():
        asked.append(None)
        return GenerationJob.objects.filter(state=JobState.QUEUED)

    watch = RowWatch(rows)
    with CaptureQueriesContext(connection) as queries:
        assert [watch.exists() for _ in range(3)] == [False] * 3
    assert len(asked) == 1
    assert len(queries) == 3
