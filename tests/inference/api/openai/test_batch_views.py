"""Batches over HTTP: OpenAI's client, shapes, pages, tenants."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import orjson
import pytest

from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.batches import upkeep
from inference.batches.services import batch_get
from inference.models import Batch
from inference.values.limits import KeyLimits
from inference.values.principal import LOCAL
from tests.inference.api.openai.test_views import matches
from tests.inference.batches.fakes import EchoManager, end_waits, line, make_batch, make_runner, store_file, work


@pytest.fixture(autouse=True)
def own_store(settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    end_waits(monkeypatch)


@pytest.fixture
def http(live_url, checkpoint):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def create(http: httpx.Client, **values: Any) -> httpx.Response:
    values = {"endpoint": "/v1/completions", "completion_window": "24h", **values}
    if "input_file_id" not in values:
        values["input_file_id"] = store_file([line("a")]).file_id
    return http.post("/v1/batches", json={name: value for name, value in values.items() if value is not None})


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]


def test_a_batch_is_reordered(http):
    batch_id = create(http).json()["id"]
    path = f"/v1/batches/{batch_id}/priority"
    assert http.post(path, json={"priority": 5}).json()["priority"] == 5
    assert error_of(http.post(path, json={"priority": 101}), 400)["param"] == "priority"
    assert error_of(http.post(path, json={}), 400)["param"] == "priority"
    headers = {"Authorization": f"Bearer {api_key_create(name='plain')[1]}"}  # without the scope priority
    assert error_of(http.post(path, json={"priority": -1}, headers=headers), 403)["param"] == "priority"
    assert error_of(http.post(path, json={"priority": 1}, headers=headers), 404)["param"] == "batch_id"
    assert error_of(http.post("/v1/batches/batch_0/priority", json={"priority": 0}), 404)["param"] == "batch_id"
    assert batch_get(batch_id=batch_id, principal=LOCAL).priority == 5


def test_openai_runs_a_batch_from_upload_to_output(client, checkpoint):
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "tiny", "messages": [{"role": "user", "content": name}]}}
        for name in ("abc", "def")
    ]  # fmt: skip
    file = client.files.create(file=("in.jsonl", b"\n".join(map(orjson.dumps, lines))), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"job": "night"}
    )
    assert (made.object, made.status, made.metadata) == ("batch", "validating", {"job": "night"})
    assert made.expires_at - made.created_at == 86_400
    work(batch_get(batch_id=made.id, principal=LOCAL), make_runner(EchoManager(str(checkpoint.pk))))
    done = client.batches.retrieve(made.id)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (2, 2, 0)
    assert done.completed_at >= done.finalizing_at >= done.in_progress_at >= done.created_at
    assert done.error_file_id is None
    output = [orjson.loads(item) for item in client.files.content(done.output_file_id).text.splitlines()]
    assert [item["custom_id"] for item in output] == ["abc", "def"]
    assert output[0]["response"]["body"]["choices"][0]["message"]["content"] == "cba"
    assert output[0]["response"]["body"]["object"] == "chat.completion"
    assert client.files.retrieve(done.output_file_id).purpose == "batch_output"
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(made.id)


def test_answers_match_the_document(http, document, checkpoint, settings):
    settings.BLAZR_WEBHOOKS = "public"

    def schema(path: str, method: str) -> dict[str, Any]:
        return document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]

    made = create(http, metadata={"a": "b"}, webhook={"url": "https://example.com/hook"}).json()
    assert made["webhook"]["secret"].startswith("whsec_")
    matches(document, schema("/v1/batches", "post"), made)
    shown = http.get(f"/v1/batches/{made['id']}").json()
    matches(document, schema("/v1/batches/{batch_id}", "get"), shown)
    assert shown["webhook"] == {"url": "https://example.com/hook"}
    work(batch_get(batch_id=made["id"], principal=LOCAL), make_runner(EchoManager(str(checkpoint.pk))))
    failed = make_batch([b"{"])
    work(failed)
    page = http.get("/v1/batches").json()
    assert [item["status"] for item in page["data"]] == ["failed", "completed"]
    assert page["data"][0]["errors"]["data"][0]["line"] == 1
    matches(document, schema("/v1/batches", "get"), page)


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"endpoint": "/v1/rerank"}, 400, "endpoint"),
        ({"completion_window": None}, 400, "completion_window"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"completion_window": "15d"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata"),
        ({"priority": 101}, 400, "priority"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
        ({"webhook": {"url": "https://example.com"}}, 400, "webhook"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_wrong_batches_are_refused_by_name(http, values, status, param):
    assert error_of(create(http, **values), status)["param"] == param
    assert Batch.objects.count() == 0


def test_an_output_file_is_no_input(http):
    file = store_file([line("a")], purpose="batch_output")
    assert "purpose" in error_of(create(http, input_file_id=file.file_id), 400)["message"]


def test_open_batches_are_limited(http, monkeypatch):
    monkeypatch.setattr("inference.batches.services.MAX_OPEN", 2)
    assert [create(http).status_code for _ in range(3)] == [200, 200, 429]


def test_lists_have_pages(http):
    ids = [create(http).json()["id"] for _ in range(5)]
    page = http.get("/v1/batches", params={"limit": 2}).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([ids[4], ids[3]], True)
    page = http.get("/v1/batches", params={"limit": 3, "after": ids[3]}).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([ids[2], ids[1], ids[0]], False)
    for query in ({"limit": 101}, {"before": "x"}):
        assert error_of(http.get("/v1/batches", params=query), 400)["param"] == next(iter(query))
    error_of(http.get("/v1/batches", params={"after": "batch_none"}), 404)
    error_of(http.get("/v1/batches/batch_none"), 404)


def test_tenants_do_not_see_each_other(http, settings):
    settings.BLAZR_API_KEY_REQUIRED = True
    mine, others = ({"Authorization": f"Bearer {api_key_create(name=name)[1]}"} for name in ("mine", "other"))
    form = {"files": {"file": ("a", orjson.dumps(line("a")))}, "data": {"purpose": "batch"}}
    file = http.post("/v1/files", **form, headers=mine).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = http.post("/v1/batches", json=body, headers=mine).json()["id"]
    schedule = http.post("/v1/batches/schedules", json={**body, "cron": "0 3 * * *"}, headers=mine).json()["id"]
    for method, path in (
        ("GET", f"/v1/batches/{batch}"),
        ("POST", f"/v1/batches/{batch}/cancel"),
        ("GET", f"/v1/batches/schedules/{schedule}"),
        ("DELETE", f"/v1/batches/schedules/{schedule}"),
    ):
        error_of(http.request(method, path, headers=others), 404)
        error_of(http.request(method, path), 401)
    for path in ("/v1/batches", "/v1/batches/schedules"):
        assert http.get(path, headers=others).json()["data"] == []
        assert len(http.get(path, headers=mine).json()["data"]) == 1


def test_deleting_the_input_before_its_validation_fails_the_batch(http):
    file = store_file([line("a")])
    made = create(http, input_file_id=file.file_id).json()
    http.delete(f"/v1/files/{file.file_id}")
    upkeep.batches_turn(owner="keeper")
    shown = http.get(f"/v1/batches/{made['id']}").json()
    assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", "file_deleted")


def test_a_submission_is_a_request_and_so_is_each_of_its_lines(http, worker, checkpoint):
    """Two submissions, 20 lines and a completion are 23 requests."""
    row, key = api_key_create(name="night", limits=KeyLimits(requests=32, concurrent=8, lines=20))
    headers = {"Authorization": f"Bearer {key}"}
    principal = principal_of_tenant(f"key:{row.pk}")
    values = {"input_file_id": store_file([line(str(number)) for number in range(20)], principal).file_id,
              "endpoint": "/v1/completions", "completion_window": "24h"}  # fmt: skip
    made = http.post("/v1/batches", json=values, headers=headers)
    assert made.status_code == 200, made.text
    assert made.headers["x-ratelimit-remaining-requests"] == "31"
    refused = http.post("/v1/batches", json=values, headers=headers)
    assert "limit of 20" in error_of(refused, 429)["message"]
    batch = work(
        batch_get(batch_id=made.json()["id"], principal=principal), make_runner(EchoManager(str(checkpoint.pk)))
    )
    assert (batch.state, batch.num_completed) == ("completed", 20)
    (used,) = http.get("/v1/usage", headers=headers).json()["data"]
    assert (used["requests"], used["prompt_tokens"], used["completion_tokens"]) == (20, 60, 40)
    assert (used["queue_seconds"], used["engine_seconds"]) == (5.0, 10.0)
    request = {"model": "tiny", "prompt": "a", "max_tokens": 9}
    answer = http.post("/v1/completions", json=request, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ratelimit-remaining-requests"] in ("9", "10", "11")  # it fills meanwhile
