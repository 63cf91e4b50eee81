"""Usage: stored in bulk, charged once, summed by day, kept while the database is away."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connections
from django.utils import timezone

from blazr_site.cli import main
from inference.access.api_keys import api_key_create
from inference.errors import InvalidRequest
from inference.models import UsageDay, UsageRecord
from inference.records import request_log, usage
from inference.records.usage import Usage, UsageWriter
from inference.records.usage_report import csv_chunks, csv_text, usage_objects, usage_question

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


@pytest.fixture
def writer(monkeypatch):
    monkeypatch.setattr(usage, "FLUSH_INTERVAL_S", 24 * 3600.0)
    found = UsageWriter()
    # Only the test stores: the thread would have a connection of its own.
    found._closed = True
    return found


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
    assert all_done.wait(10)
    found.close()
    assert seen[:7] == ["stored", "stored", "stored", "closed", "stored", "closed", "stored"]
    assert seen[-1] == "closed"


# --- questions ---------------------------------------------------------------------------------


def ask(**parts):
    given = {"first": "2026-11-01", "last": "2026-11-30", "group_by": None, "tenant": None, "model": None}
    return usage_question(**given | parts)


def test_groups_filters_and_names(db, writer):
    row, _ = api_key_create(name="team")
    tenant = f"key:{row.pk}"
    store(
        writer,
        record("a", tenant=tenant),
        record("b", tenant=tenant, model="other"),
        record("c", tenant="local"),
        record("d", tenant="local", created_at=NOON - timedelta(days=60)),
    )
    by_key = {item["key"]: item for item in usage_objects(ask(group_by="key"))}
    assert set(by_key) == {row.prefix, "local"}
    assert by_key[row.prefix]["key_name"] == "team"
    assert by_key[row.prefix]["requests"] == 2
    assert by_key[row.prefix]["total_tokens"] == 26
    assert by_key["local"]["requests"] == 1
    (total,) = usage_objects(ask(group_by=""))
    assert total["requests"] == 3
    assert total["engine_seconds"] == 1.5
    assert "key" not in total
    days = usage_objects(ask(tenant=tenant))
    assert [(item["day"], item["model"]) for item in days] == [("2026-11-20", "other"), ("2026-11-20", "tiny")]
    assert [item["model"] for item in usage_objects(ask(group_by="model", model="other"))] == ["other"]
    assert usage_objects(ask(last="2026-11-19")) == []


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ({"first": "yesterday"}, "from"),
        ({"last": "2026-13-01"}, "to"),
        ({"first": "2026-12-01"}, "from"),
        ({"first": "1900-01-01"}, "from"),
        ({"group_by": "key,colour"}, "group_by"),
        ({"group_by": "key,key"}, "group_by"),
    ],
)
def test_wrong_questions_are_refused_by_name(parts, param):
    with pytest.raises(InvalidRequest) as caught:
        ask(**parts)
    assert caught.value.param == param


def test_files_are_cut_into_chunks_and_hold_no_formula(db, writer):
    store(writer, *(record(f"r{number}", model=f"m{number:04}") for number in range(600)))
    chunks = list(csv_chunks(ask(group_by="model")))
    assert len(chunks) == 3
    lines = "".join(chunks).splitlines()
    assert lines[0].startswith("model,requests,prompt_tokens")
    assert len(lines) == 601
    assert lines[1].startswith("m0000,1,10,4,3,")
    assert csv_text([["=1+1", "-2", -2, 'a"b']]) == '\'=1+1,\'-2,-2,"a""b"\r\n'


def test_the_command_prints_a_table_and_a_file(db, writer, monkeypatch, capsys):
    monkeypatch.setattr("blazr_site.cli.set_up", lambda arguments, needs: None)
    monkeypatch.setenv("COLUMNS", "200")
    span = ("--from", "2026-11-01", "--to", "2026-11-30")
    assert main(["usage", *span]) == 0
    assert "Nothing was used" in capsys.readouterr().out
    store(writer, record("a", tenant="local", completion_tokens=1234))
    assert main(["usage", *span, "--by", "key,model"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["key", "name", "model"]
    assert line.split()[:2] == ["local", "tiny"]
    assert "1,234" in line
    assert main(["usage", *span, "--csv", "--key", "local"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("2026-11-20,local,,tiny,1,10,4,1234")
    assert main(["usage", "--by", "colour"]) == 2
    assert "colour" in capsys.readouterr().err


# --- the request log ---------------------------------------------------------------------------


def test_old_requests_leave_the_log_and_the_sums_stay(db, writer, settings, monkeypatch):
    monkeypatch.setattr(request_log, "SWEEP_BATCH", 2)
    settings.BLAZR_REQUEST_LOG_DAYS = 10
    now = timezone.now()
    old = [record(f"old{number}", created_at=now - timedelta(days=11)) for number in range(5)]
    store(writer, *old, record("new", created_at=now - timedelta(days=9)))
    assert request_log.request_log_sweep() == 5
    assert UsageRecord.objects.get().request_id == "new"
    assert sum(UsageDay.objects.values_list("requests", flat=True)) == 6


def test_contents_are_logged_only_when_asked_for_and_cut(settings, monkeypatch):
    choice = SimpleNamespace(text="x" * 500)
    plan = SimpleNamespace(prompts=({"text": "\0 \ud800"},))
    builder = SimpleNamespace(plan=plan, prompts=[SimpleNamespace(choices=[choice])])
    assert request_log.logged_contents(builder) == {}
    settings.BLAZR_REQUEST_LOG_CONTENTS = True
    monkeypatch.setattr("inference.records.request_log.MAX_CHARS", 100)
    contents = request_log.logged_contents(builder)
    assert contents["prompt"] == '[{"text": "\\u0000 \\ud800"}]'
    assert len(contents["answer"]) == 100
    assert contents["answer"].endswith("…")
