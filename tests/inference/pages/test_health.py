"""Problems, failed requests and changes."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.access.api_keys import api_key_create, api_key_revoke
from inference.models import UsageRecord, UsageSpan
from inference.pages.health import NUM_ERRORS, changes, failed_requests, num_failures, problems
from inference.records.usage_spans import HOUR, MINUTE, QUARTER, last_begin
from models_registry import services
from models_registry.aliases import alias_promote
from models_registry.models import Adapter
from tests.models_registry.detection.builders import small_hybrid, write_checkpoint

pytestmark = pytest.mark.django_db
NO_FAILURES = (0, 0)
EMPTY = {"notice": "", "checkpoints": [], "workers": []}


def ended(number: int, at: datetime, outcome: str = "generation_failed") -> None:
    UsageRecord.objects.create(
        request_id=f"r{number}", tenant="local", endpoint="chat", model="tiny", outcome=outcome, duration_s=1.0,
        created_at=at,
    )  # fmt: skip


def ids() -> list[str]:
    return [row.request_id for row in failed_requests()]


def test_what_is_wrong_is_said_with_a_way_on() -> None:
    live = {"status": "failed", "error": "It is too large."}
    key = "6d1bb4c8-0d53-4d4c-9d0e-6ff2d6f4b8a1"
    state = {
        "notice": "",
        "checkpoints": [
            {"id": key, "served_model_name": "big", "state": "available", "live": live},
            {"id": key, "served_model_name": "lost", "state": "missing", "live": {"status": "unloaded"}},
        ],
    }
    silent = {"worker_id": "w-1", "mark": "failed", "words": "silent"}
    good = {"worker_id": "w-0", "mark": "ready", "words": "alive"}
    assert [(item["kind"], item["words"]) for item in problems(state, [good, silent], NO_FAILURES)] == [
        ("bad", "The worker w-1: silent."),
        ("bad", "big could not be loaded: It is too large."),
        ("warn", "The files of lost are missing."),
    ]
    assert problems(state, [good], NO_FAILURES)[0]["url"] == f"/models/{key}/"
    assert problems(EMPTY, [good], NO_FAILURES) == []
    assert [item["words"] for item in problems(EMPTY, [], NO_FAILURES)] == [
        "No worker is alive. Requests wait until one is."
    ]
    assert [item["words"] for item in problems({**EMPTY, "notice": "Redis is away."}, [], NO_FAILURES)] == [
        "Redis is away."
    ]


@pytest.mark.parametrize(("failures", "is_problem"), [((19, 19), False), ((1, 20), False), ((2, 20), True)])
def test_many_failures_are_a_problem(failures: tuple[int, int], is_problem: bool) -> None:
    good = {"worker_id": "w-0", "mark": "ready", "words": "alive"}
    found = problems(EMPTY, [good], failures)
    assert [item["words"] for item in found] == ["2 of 20 requests failed in the last hour."] * is_problem


def test_failed_requests_are_found_in_the_spans_and_behind_them() -> None:
    now = timezone.now()
    minute, quarter = last_begin(now, MINUTE), last_begin(now, QUARTER) - timedelta(hours=2)
    UsageSpan.objects.create(begin=minute, length_s=MINUTE, failures=1, requests=2)
    UsageSpan.objects.create(begin=minute - timedelta(minutes=5), length_s=MINUTE, failures=0, requests=1)
    UsageSpan.objects.create(begin=quarter, length_s=QUARTER, failures=1, requests=1)
    ended(1, now)
    ended(2, minute)
    ended(3, minute, "completed")
    ended(4, minute, "cancelled")
    ended(5, quarter + timedelta(minutes=1))
    ended(6, now - timedelta(days=2))
    assert ids() == ["r1", "r2", "r5"]
    for number in range(10, 10 + NUM_ERRORS):
        ended(number, now)
    assert len(ids()) == NUM_ERRORS and "r5" not in ids()


def test_a_quarter_that_has_minutes_too_names_no_request_twice() -> None:
    now = timezone.now()
    quarter = last_begin(now, QUARTER)
    for length_s, begin in ((QUARTER, quarter), (MINUTE, quarter), (MINUTE, quarter + timedelta(minutes=14))):
        UsageSpan.objects.create(begin=begin, length_s=length_s, failures=1, requests=1)
    ended(1, quarter)
    ended(2, quarter + timedelta(minutes=14))
    assert sorted(ids()) == ["r1", "r2"]


def test_without_spans_the_day_is_read() -> None:
    ended(1, timezone.now() - timedelta(hours=3))
    assert ids() == ["r1"]


def test_few_queries_find_no_failure() -> None:
    begin = last_begin(timezone.now(), MINUTE)
    for number in range(60):
        UsageSpan.objects.create(begin=begin - timedelta(minutes=number), length_s=MINUTE, requests=1)
    with CaptureQueriesContext(connection) as captured:
        assert failed_requests() == []
    assert len(captured) == 2


def test_failures_of_the_hour() -> None:
    assert num_failures(timezone.now()) == (0, 0)
    UsageSpan.objects.create(begin=last_begin(timezone.now(), HOUR), length_s=HOUR, failures=2, requests=9)
    assert num_failures(timezone.now()) == (2, 9)


def test_changes_are_the_newest_first_and_keys_are_for_those_who_may_see_them(tmp_path) -> None:
    row = services.checkpoint_register(path=write_checkpoint(tmp_path / "tiny", *small_hybrid()))
    alias_promote(name="main", checkpoint=row, author_name="ada")
    adapter = Adapter.objects.create(base=row, name="sql", path="/sql", rank=1, num_values=1, size_bytes=1)
    alias_promote(name="sql", checkpoint=row, adapter=adapter)
    key, _ = api_key_create(name="ci")
    api_key_revoke(prefix=key.prefix)
    now = timezone.now().timestamp()
    state = {
        "checkpoints": [
            {
                "id": row.pk,
                "served_model_name": row.served_model_name,
                "live": {"departures": [{"at": now + 1, "reason": "it made room."}, {"at": 1e30, "reason": "odd"}]},
            }
        ],
        "workers": [{"worker_id": "w-0", "started_at": now - 60}, {"worker_id": "w-1", "started_at": 0.0}],
    }
    words = [item["words"] for item in changes(state, sees_keys=True)]
    assert words[0] == f"{row.served_model_name} was unloaded: it made room."
    assert words[-1] == "The worker w-0 started"
    assert {f"{row.served_model_name} was registered", "The key ci was made", "The key ci was revoked"} < set(words)
    name = row.served_model_name
    assert {f"main means {name} by ada", f"sql means {name}:sql"} < set(words)
    assert not any("key" in item["words"] for item in changes(state, sees_keys=False))
