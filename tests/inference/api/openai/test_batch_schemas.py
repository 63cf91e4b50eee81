"""Shapes of files and batches: the bodies that they take, and the members of the real responses."""

from __future__ import annotations

import httpx
import pytest

from inference.api.openai.batch_schemas import (
    BatchListSerializer,
    BatchProgressSerializer,
    BatchRequestSerializer,
    BatchScheduleDeletedSerializer,
    BatchScheduleListSerializer,
    BatchScheduleRequestSerializer,
    BatchScheduleSerializer,
    BatchSerializer,
    BatchUsageSerializer,
    FileDeletedSerializer,
    FileListSerializer,
    FileSerializer,
)
from inference.files.services import UPLOAD_PURPOSES
from inference.states.services import PURPOSE as STATE
from tests.inference.batches.fakes import line, store_file

BATCH = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"}


@pytest.fixture
def http(live_url, checkpoint, settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({}, set()),
        ({"priority": -5, "metadata": {"a": "b"}, "webhook": {"url": "https://example.org"}}, set()),
        ({"endpoint": "/v1/models"}, {"endpoint"}),
        ({"priority": "5"}, {"priority"}),
        ({"metadata": "a"}, {"metadata"}),
        ({"webhook": {"secret": "whsec_"}}, {"webhook"}),
        ({"completion_window": "x" * 17}, {"completion_window"}),
    ],
)
def test_bodies_of_batches(values, wrong):
    request = BatchRequestSerializer(data=BATCH | values)
    request.is_valid()
    assert set(request.errors) == wrong


def test_a_schedule_is_a_batch_with_a_time():
    assert set(BatchScheduleRequestSerializer().fields) == {*BatchRequestSerializer().fields, "cron", "time_zone"}
    assert BatchScheduleRequestSerializer(data=BATCH | {"cron": "0 3 * * *"}).is_valid()
    missing = BatchScheduleRequestSerializer(data=BATCH)
    assert not missing.is_valid()
    assert set(missing.errors) == {"cron"}


@pytest.mark.parametrize("purpose", [*UPLOAD_PURPOSES, "batch_output", STATE])
def test_files_of_every_purpose_are_of_the_schema(http, purpose):
    store_file([line("a")], purpose=purpose)
    (found,) = http.get("/v1/files").json()["data"]
    assert found["purpose"] == purpose
    shape = FileSerializer(data=found)
    assert shape.is_valid(), shape.errors


def test_files_have_exactly_the_documented_members(http):
    made = http.post("/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "batch"}).json()
    assert set(made) == set(FileSerializer().fields)
    assert FileSerializer(data=made).is_valid()
    assert set(http.get("/v1/files").json()) == set(FileListSerializer().fields)
    deleted = http.delete(f"/v1/files/{made['id']}").json()
    assert set(deleted) == set(FileDeletedSerializer().fields)
    assert FileDeletedSerializer(data=deleted).is_valid()


def test_batches_have_exactly_the_documented_members(http):
    body = BATCH | {"input_file_id": store_file([line("a")]).file_id}
    made = http.post("/v1/batches", json=body).json()
    assert set(made) == set(BatchSerializer().fields)
    assert set(made["usage"]) == set(BatchUsageSerializer().fields)
    assert set(made["progress"]) == set(BatchProgressSerializer().fields)
    found = BatchSerializer(data=made)
    assert found.is_valid(), found.errors
    assert set(http.get("/v1/batches").json()) == set(BatchListSerializer().fields)


def test_schedules_have_exactly_the_documented_members(http):
    body = BATCH | {"input_file_id": store_file([line("a")]).file_id, "cron": "0 3 * * *"}
    made = http.post("/v1/batches/schedules", json=body).json()
    assert set(made) == set(BatchScheduleSerializer().fields)
    assert set(http.get("/v1/batches/schedules").json()) == set(BatchScheduleListSerializer().fields)
    deleted = http.delete(f"/v1/batches/schedules/{made['id']}").json()
    assert set(deleted) == set(BatchScheduleDeletedSerializer().fields)
