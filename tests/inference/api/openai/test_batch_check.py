"""Files that a page sends to be checked: good ones are stored for an hour, bad ones leave nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from django.test import Client
from django.utils import timezone

from inference.models import StoredFile
from tests.accounts import account
from tests.inference.batches.fakes import line
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(settings, tmp_path) -> Client:
    client = Client()
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    make_checkpoint()
    client.force_login(account("edwin", "operator"))
    return client


def sent(client: Client, body: bytes, query: str = "?filename=in.jsonl") -> tuple[int, dict[str, Any]]:
    # Django's client names the type of an empty body only when it is told to.
    kind = "application/octet-stream"
    response = client.post(f"/api/batches/check{query}", data=body, content_type=kind, CONTENT_TYPE=kind)
    return response.status_code, response.json()


def stored_names(settings) -> list[str]:
    return [path.name for path in settings.BLAZR_FILES_DIR.rglob("*") if path.is_file() and path.name != ".lock"]


def test_a_good_file_is_stored_for_an_hour(operator: Client, settings) -> None:
    status, found = sent(operator, orjson.dumps(line("a")) + b"\n" + orjson.dumps(line("b", temperature=77)))
    assert (status, found["report"]["lines"], found["report"]["failing"]) == (200, 2, 1)
    row = StoredFile.objects.get()
    assert (found["file"]["id"], row.filename, row.purpose) == (row.file_id, "in.jsonl", "batch")
    assert row.expires_at is not None and row.expires_at < timezone.now() + timedelta(hours=1)
    assert stored_names(settings) == [row.sha256]


def test_a_bad_file_is_reported_and_leaves_nothing(operator: Client, settings) -> None:
    status, found = sent(operator, orjson.dumps(line("a")) + b"\n{\n[1]")
    assert (status, found["file"], found["report"]["refused"]) == (200, None, 2)
    assert [item["line"] for item in found["report"]["problems"]] == [2, 3]
    assert StoredFile.objects.count() == 0 and stored_names(settings) == []


def test_what_is_no_file_is_refused(operator: Client, settings) -> None:
    assert sent(operator, b"")[0] == 400
    assert sent(operator, b"{}", "?name=x")[0] == 400
    assert operator.post("/api/batches/check", data=b"{}", content_type="application/json").status_code == 415
    settings.BLAZR_MAX_FILE_BYTES = 10
    status, found = sent(operator, b"x" * 11)
    assert (status, "10 bytes" in found["error"]["message"]) == (413, True)
    assert stored_names(settings) == []
