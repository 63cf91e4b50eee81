"""Files over HTTP: OpenAI's client, shapes, limits, tenants, and what is left on the disk."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from django.conf import settings as django_settings
from django.utils import timezone

from inference.access.api_keys import api_key_create
from inference.files import services as files
from inference.models import StoredFile
from tests.inference.api.openai.test_views import matches

CONTENT = b'{"custom_id": "a"}\n'


@pytest.fixture
def http(live_url, transactional_db):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


@pytest.fixture(autouse=True)
def empty_store(transactional_db, settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"
    yield
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    files.files_sweep()
    assert stored() == set()


def stored() -> set[str]:
    """Names of everything in the store, half-written files too."""
    directory = Path(django_settings.BLAZR_FILES_DIR)
    return {path.name for path in directory.rglob("*") if path.is_file() and path.name != ".lock"}


def upload(http: httpx.Client, content: bytes = CONTENT, name: str = "in.jsonl", **fields: Any) -> httpx.Response:
    return http.post("/v1/files", files={"file": (name, content)}, data={"purpose": "batch", **fields})


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_openai_uploads_lists_reads_and_deletes(client, transactional_db):
    made = client.files.create(file=("in.jsonl", CONTENT), purpose="batch")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(CONTENT), "in.jsonl", "batch")
    assert made.id.startswith("file-")
    assert made.expires_at - made.created_at == 30 * 86_400
    assert client.files.retrieve(made.id) == made
    assert [item.id for item in client.files.list()] == [made.id]
    assert client.files.content(made.id).read() == CONTENT
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)
    assert stored() == set()


def test_answers_match_the_document(http, document):
    made = upload(http).json()
    schemas = document["paths"]

    def schema(path: str, method: str) -> dict[str, Any]:
        return schemas[path][method]["responses"]["200"]["content"]["application/json"]["schema"]

    matches(document, schema("/v1/files", "post"), made)
    matches(document, schema("/v1/files", "get"), http.get("/v1/files").json())
    matches(document, schema("/v1/files/{file_id}", "delete"), http.delete(f"/v1/files/{made['id']}").json())


def test_equal_contents_are_stored_once_and_go_with_the_last_row(http):
    first, second = upload(http).json()["id"], upload(http, name="other.jsonl").json()["id"]
    assert len(stored()) == 1
    http.delete(f"/v1/files/{first}")
    assert http.get(f"/v1/files/{second}/content").content == CONTENT
    http.delete(f"/v1/files/{second}")
    assert stored() == set()


def test_lists_have_pages(http):
    ids = [upload(http, str(number).encode()).json()["id"] for number in range(5)]
    page = http.get("/v1/files", params={"limit": 2}).json()
    assert [item["id"] for item in page["data"]] == [ids[4], ids[3]]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, ids[4], ids[3])
    page = http.get("/v1/files", params={"limit": 2, "after": ids[1], "order": "asc"}).json()
    assert [item["id"] for item in page["data"]] == [ids[2], ids[3]]
    assert http.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []
    for query in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"page": 2}):
        assert error_of(http.get("/v1/files", params=query), 400)["param"] == next(iter(query))
    error_of(http.get("/v1/files", params={"after": "file-none"}), 404)


def test_names_are_labels_and_never_paths(http):
    for name in ("../../etc/passwd", "/etc/passwd", "a\\b", "ü" * 300):
        made = upload(http, name=name).json()
        assert "/" not in made["filename"]
        assert len(made["filename"]) <= 255
    assert len(stored()) == 1


def test_files_expire(http):
    made = upload(http, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}).json()
    assert made["expires_at"] - made["created_at"] == 3600
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    error_of(http.get(f"/v1/files/{made['id']}"), 404)
    error_of(http.get(f"/v1/files/{made['id']}/content"), 404)
    assert http.get("/v1/files").json()["data"] == []
    assert files.files_sweep() == 1
    assert stored() == set()


def test_tenants_do_not_see_each_other(http, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    mine, others = ({"Authorization": f"Bearer {api_key_create(name=name)[1]}"} for name in ("mine", "other"))
    made = http.post("/v1/files", files={"file": ("a", CONTENT)}, data={"purpose": "batch"}, headers=mine).json()
    path = f"/v1/files/{made['id']}"
    assert http.get(path, headers=mine).status_code == 200
    for method, target in (("GET", path), ("GET", f"{path}/content"), ("DELETE", path)):
        error_of(http.request(method, target, headers=others), 404)
        error_of(http.request(method, target), 401)
    assert http.get("/v1/files", headers=others).json()["data"] == []
    body = {"input_file_id": made["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    error_of(http.post("/v1/batches", json=body, headers=others), 404)
