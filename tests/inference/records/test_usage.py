"""Usage: stored in bulk, charged once, summed by day, kept while the database is away."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import OperationalError, connections

from inference.models import UsageDay, UsageRecord
from inference.records import usage
from inference.records.usage import Usage, UsageWriter

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def record(request_id: str, *, tenant="key:1", model="tiny", created_at=NOON, **values) -> Usage:
    figures = {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3, "engine_s": 0.5, "queue_s": 0.25}
    return Usage(
        request_id=request_id,
        tenant=tenant,
        endpoint="chat",
        model=model,
        outcome="completed",
        ttft_s=None,
        duration_s=0.75,
        created_at=created_at,
        **figures | values,
    )


def store(writer: UsageWriter, *records: Usage) -> int:
    for item in records:
        writer.offer(item)
    return writer.flush()


def test_records_are_summed_per_key_model_and_day(db, writer):
    stored = store(
        writer,
        record("a"),
        record("b", completion_tokens=100),
        record("c", model="other"),
        record("d", tenant="key:2"),
        record("e", created_at=NOON + timedelta(days=1)),
    )
    assert stored == 5
    day = UsageDay.objects.get(day=date(2026, 11, 20), tenant="key:1", model="tiny")
    assert (day.requests, day.prompt_tokens, day.cached_tokens, day.completion_tokens) == (2, 20, 8, 103)
    assert (day.engine_s, day.queue_s) == (1.0, 0.5)
    assert UsageDay.objects.count() == 4
    store(writer, record("f"))
    day.refresh_from_db()
    assert day.requests == 3


def test_a_failure_without_tokens_belongs_to_no_day(db, writer):
    nothing = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0}
    assert store(writer, record("a", requests=0, **nothing), record("b", itl_s=0.25, cache_outcome="cold")) == 2
    assert [day.requests for day in UsageDay.objects.all()] == [1]
    stored = UsageRecord.objects.order_by("request_id").values_list("request_id", "itl_s", "cache_outcome")
    assert list(stored) == [("a", None, ""), ("b", 0.25, "cold")]


def test_a_record_that_comes_twice_is_charged_once(db, writer):
    assert store(writer, record("a"), record("a")) == 1
    assert store(writer, record("a"), record("b")) == 1
    assert UsageRecord.objects.count() == 2
    assert UsageDay.objects.get().requests == 2


def test_a_record_may_stand_for_many_requests(db, writer):
    store(writer, record("batch_1-m", requests=500), record("a"))
    assert UsageDay.objects.get().requests == 501


def test_flush_is_bulk_whatever_the_number_of_records(db, writer, django_assert_max_num_queries):
    for number in range(400):
        writer.offer(record(f"r{number}"))
    # SQLite takes some sixty rows at a time.
    with django_assert_max_num_queries(20):
        assert writer.flush() == 400


def test_records_are_kept_while_the_database_is_away(db, writer, monkeypatch):
    def broken(taken):
        raise OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(usage, "_store", broken)
        with pytest.raises(OperationalError):
            store(writer, record("a"), record("b"))
    assert writer.flush() == 2
    assert UsageDay.objects.get().requests == 2


def test_the_connection_is_kept_while_there_is_something_to_store(monkeypatch):
    turns = [3, 2, 0, OperationalError("gone"), 1]
    seen: list[str] = []
    all_done = threading.Event()

    def flush() -> int:
        found = turns.pop(0)
        seen.append("stored")
        if not turns:
            all_done.set()
        if isinstance(found, Exception):
            raise found
        return found

    found = UsageWriter()
    monkeypatch.setattr(usage, "FLUSH_INTERVAL_S", 0.0)
    monkeypatch.setattr(found, "flush", lambda: flush() if turns else 1)
    monkeypatch.setattr(connections, "close_all", lambda: seen.append("closed"))
    found.offer(record("a"))
    assert all_done.wait(60)
    found.close()
    assert seen[:7] == ["stored", "stored", "stored", "closed", "stored", "closed", "stored"]
    assert seen[-1] == "closed"
