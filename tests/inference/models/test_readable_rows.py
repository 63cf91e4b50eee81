"""Damaged rows are left out, named in one line of the log, and stop no other row."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db import connection, transaction
from django.db.models import JSONField, Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import get_resolver

from inference.batches.services import batch_list
from inference.files.services import file_list
from inference.models import ApiKey, Batch, GenerationJob, JobState, StoredFile
from inference.models.readable_rows import DamagedRow, json_value, readable_rows
from inference.transport import questions as worker_questions
from inference.values.principal import LOCAL
from models_registry.api.views import _inspection
from tests.accounts import account
from tests.inference.api.test_urls_access import address, objects, routes  # noqa: F401 - a fixture
from tests.inference.batches.fakes import line, make_batch
from tests.inference.jobs.submissions import submit
from tests.inference.rows import damage, make_checkpoint

CUT = '{"cut": ["he'

pytestmark = pytest.mark.django_db


@pytest.fixture
def model(db):
    return make_checkpoint()


def test_readable_rows_fill_the_page_and_damaged_ones_are_one_line(model, caplog):
    jobs = [submit()[0] for _ in range(3)]
    damage(jobs[1], "job_id")
    caplog.set_level(logging.WARNING)
    assert readable_rows(GenerationJob.objects.all(), 2) == [jobs[2], jobs[0]]
    (record,) = caplog.records
    assert record.getMessage().startswith("1 damaged rows of the table inference_generationjob are left out")
    assert record.getMessage().endswith(f"keys {jobs[1].pk}")


def test_damaged_batches_and_files_are_left_out(model):
    batches = [make_batch([line("a")]), make_batch([line("b")])]
    files = list(StoredFile.objects.order_by("pk"))
    damage(batches[0], "created_at", "2026-13-45 00:00:00")
    damage(files[0], "created_at", "2026-13-45 00:00:00")
    assert batch_list(principal=LOCAL, after=None, limit=10) == [batches[1]]
    assert file_list(principal=LOCAL, purpose=None, after=None, limit=10, oldest_first=True) == [files[1]]


@pytest.mark.parametrize("text", [CUT, "7", "[1]", "\x00"])
def test_damaged_json_leaves_the_row_out(model, text, caplog):
    jobs = [submit()[0] for _ in range(3)]
    damage(jobs[1], "plan", text)
    with pytest.raises(DamagedRow):
        json_value(GenerationJob.objects.get(pk=jobs[1].pk), "plan")
    assert readable_rows(GenerationJob.objects.all()) == [jobs[2], jobs[0]]
    assert caplog.messages[-1].endswith(f"keys {jobs[1].pk}")
    assert readable_rows(GenerationJob.objects.defer("plan")) == jobs[::-1]


def json_columns() -> Iterator[tuple[type[Model], str]]:
    """Every column with JSON, as text or as Django's field."""
    for model in apps.get_models():
        fields = [field.name for field in model._meta.concrete_fields if isinstance(field, JSONField)]
        yield from ((model, name) for name in {*fields, *getattr(model, "JSON_COLUMNS", ())})


def test_damaged_json_makes_no_page_and_no_route_a_500(
    objects,  # noqa: F811
    settings,
    monkeypatch,
    redis_urls_in_settings,
):
    """Each column is damaged in all rows; then every route that reads their table is asked, with a key or a session."""
    monkeypatch.setattr(worker_questions, "REPLY_TIMEOUT_S", 0.0)  # there is no worker
    monkeypatch.setattr("channels.db.close_old_connections", lambda: None)  # the test's transaction is open
    monkeypatch.setattr("inference.access.api_keys.CACHE_S", -1.0)
    settings.ALLOWED_HOSTS, settings.BLAZR_API_KEY_REQUIRED = ["testserver"], True
    Batch.objects.update(metadata="{}", errors="[]", checkpoints="{}")
    GenerationJob.objects.update(state=JobState.SUCCEEDED, result="{}")
    session = Client(raise_request_exception=False)
    session.force_login(account("boss", "superuser"))
    programs = Client(raise_request_exception=False, headers={"authorization": f"Bearer {objects['owner']}"})
    ApiKey.objects.update(scopes=["admin"])
    paths = {address(route, objects) for route, view in routes(get_resolver()) if view is None or hasattr(view, "get")}

    def status(path: str) -> int:
        return (programs if path.startswith(("/v1/", "/api/")) else session).get(path).status_code

    sound, queries, wrong, num_other = {}, {}, [], 0
    for path in paths:
        with CaptureQueriesContext(connection) as captured:
            sound[path] = status(path)
        queries[path] = " ".join(query["sql"] for query in captured)
    columns = list(json_columns())
    for model, column, text in [
        (model, column, text) for model, column in columns for text in (CUT, "{}", "[]", '{"tokenizer": {}}')
    ]:
        point = transaction.savepoint()
        for row in model.objects.all():
            damage(row, column, text)
        _inspection.cache_clear()
        found = {path: status(path) for path in paths if f'"{model._meta.db_table}"' in queries[path]}
        wrong += [
            f"{model.__name__}.{column} = {text}: {now} {path}"
            for path, now in found.items()
            if now >= 500 > sound[path]
        ]
        num_other += any(sound[path] != now for path, now in found.items())
        transaction.savepoint_rollback(point)
    assert not wrong, "\n".join(wrong)
    assert len(columns) >= 15 and num_other >= 12  # what was damaged was asked for
