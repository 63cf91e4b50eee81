"""Idempotency-Key: done once, answered again; streams, forms, errors, clients that leave, processes that die."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import redis
from django.db import OperationalError

from inference.access.api_keys import api_key_create
from inference.api.idempotent import _stream_digest
from inference.api.responses.background import BackgroundResponse
from inference.errors import GenerationFailed
from inference.models import Batch, GenerationJob, StoredFile
from inference.serving import idempotency
from inference.transport import keys as redis_keys
from inference.values.limits import KeyLimits
from tests.inference.api.openai.test_views_openai_client import wait_for
from tests.inference.api.scripted_worker import say
from tests.inference.api.test_base import CHAT, is_error

PATH = "/v1/chat/completions"


@pytest.fixture
def keys(redis_server):
    client = redis.Redis.from_url(redis_server.client)
    yield client
    for pattern in ("idem", "limit", "open"):
        for key in client.scan_iter(f"{redis_keys.PREFIX}{pattern}:*"):
            client.delete(key)
    client.close()


@pytest.fixture
def http(live_url, worker, keys):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def once(key: str | bytes, **more: str) -> dict[str, str | bytes]:
    return {"Idempotency-Key": key, **more}


def post_until(http: httpx.Client, is_it, **arguments) -> httpx.Response:
    """The first response of which ``is_it`` is true: what a response leaves is stored behind its last byte."""
    responses = []

    def post() -> bool:
        responses.append(http.post(PATH, headers=once("a"), **arguments))
        return is_it(responses[-1])

    wait_for(post)
    return responses[-1]


def has_succeeded(response: httpx.Response) -> bool:
    return response.status_code == 200


def test_the_same_request_is_computed_once_and_answered_again(http, worker, keys):
    first = http.post(PATH, json=CHAT, headers=once("a"))
    again = http.post(PATH, json=CHAT, headers=once("a"))
    assert first.status_code == again.status_code == 200
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-request-id"] == first.headers["x-request-id"]
    assert again.content == first.content
    assert len(worker.messages) == 1
    (stored,) = keys.scan_iter(f"{redis_keys.PREFIX}idem:*")
    assert 86_000 < keys.ttl(stored) <= 86_400
    assert http.post(PATH, json=CHAT, headers=once("b")).json()["id"] != first.json()["id"]


def test_another_request_under_the_key_is_refused(http):
    http.post(PATH, json=CHAT, headers=once("a"))
    error = is_error(http.post(PATH, json={**CHAT, "n": 2}, headers=once("a")), 422, "idempotency_key_reused")
    assert error["param"] == "Idempotency-Key"
    is_error(http.post("/v1/completions", json=CHAT, headers=once("a")), 422, "idempotency_key_reused")


@pytest.mark.parametrize("key", ["", "x" * 256, b"caf\xe9", "a\tb"])
def test_keys_that_are_none_are_refused(http, key):
    assert is_error(http.post(PATH, json=CHAT, headers=once(key)), 400)["param"] == "Idempotency-Key"


def test_keys_of_two_callers_have_nothing_to_do_with_each_other(http):
    answers = []
    for name in ("one", "two"):
        _, key = api_key_create(name=name)
        answers.append(http.post(PATH, json=CHAT, headers=once("a", Authorization=f"Bearer {key}")).json()["id"])
    assert answers[0] != answers[1]


def test_a_repetition_is_not_counted_against_the_limits(http):
    _, key = api_key_create(name="one", limits=KeyLimits(requests=1))
    headers = once("a", Authorization=f"Bearer {key}")
    first = http.post(PATH, json=CHAT, headers=headers)
    again = http.post(PATH, json=CHAT, headers=headers)
    assert again.json() == first.json()
    assert "x-ratelimit-limit-requests" in first.headers
    assert "x-ratelimit-limit-requests" not in again.headers


def test_a_stream_is_answered_again_in_one_piece(http, worker):
    body = {**CHAT, "stream": True}
    first = http.post(PATH, json=body, headers=once("a"))
    assert first.text.endswith("data: [DONE]\n\n")
    again = post_until(http, has_succeeded, json=body)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.content == first.content
    assert len(worker.messages) == 1


def test_while_it_runs_others_are_told_to_wait(http, worker):
    go_on = threading.Event()

    def slowly(reply):
        yield reply.start()
        go_on.wait(60)
        yield reply.delta("done", finish_reason="stop", stop_reason=None)
        yield reply.done()

    worker.script = slowly
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(http.post, PATH, json=CHAT, headers=once("a"))
        wait_for(lambda: worker.messages)
        refused = http.post(PATH, json=CHAT, headers=once("a"))
        is_error(refused, 409, "idempotency_key_in_use")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-should-retry"] == "true"
        go_on.set()
        assert http.post(PATH, json=CHAT, headers=once("other")).status_code == 200
        assert running.result().json()["choices"][0]["message"]["content"] == "done"


def test_of_many_at_once_one_is_done(http):
    body = {"endpoint": "chat", "body": CHAT}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: http.post("/api/jobs", json=body, headers=once("a")), range(48)))
    assert GenerationJob.objects.count() == 1
    assert {answer.status_code for answer in answers} == {202}
    done = [answer.json()["data"][0]["id"] for answer in answers]
    assert set(done) == {str(GenerationJob.objects.get().job_id)}


@pytest.mark.parametrize("stream", [False, True])
def test_after_an_error_the_request_may_be_tried_again(http, worker, stream):
    body = {**CHAT, "stream": stream}

    def failing(reply):
        yield reply.start()
        yield reply.error(GenerationFailed("broken"))

    worker.script = failing
    assert "broken" in http.post(PATH, json=body, headers=once("a")).text
    worker.script = say("Hello")
    assert "Hello" in post_until(http, has_succeeded, json=body).text
    assert is_error(http.post(PATH, json={"model": "tiny"}, headers=once("b")), 400)
    assert http.post(PATH, json=body, headers=once("b")).status_code == 200


def test_a_stream_that_breaks_off_is_not_kept(http, keys, checkpoint, monkeypatch):
    body = {"model": "tiny", "input": "Hi", "background": True, "stream": True}
    with monkeypatch.context() as patched:
        patched.setattr(BackgroundResponse, "read", broken)
        assert "event: error" in http.post("/v1/responses", json=body, headers=once("a")).text
    GenerationJob.objects.update(state="cancelled")
    wait_for(lambda: "response.cancelled" in http.post("/v1/responses", json=body, headers=once("a")).text)
    assert GenerationJob.objects.count() == 1


def broken(*_: object) -> None:
    raise OperationalError("gone")


def test_a_client_that_leaves_frees_its_key(http, worker):
    def never_ending(reply):
        yield reply.start()
        yield reply.delta("a")
        reply.cancelled.wait(60)

    worker.script = never_ending
    body = {**CHAT, "stream": True}
    with http.stream("POST", PATH, json=body, headers=once("a")) as stream:
        next(stream.iter_bytes())
    worker.script = say("Hello")
    assert "Hello" in post_until(http, has_succeeded, json=body).text


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_too_large_to_keep_is_not_computed_again(http, worker, monkeypatch, stream):
    monkeypatch.setattr("inference.serving.idempotency.MAX_BYTES", 100)
    monkeypatch.setattr("inference.api.idempotent.MAX_BYTES", 100)
    body = {**CHAT, "stream": stream}
    assert "Hello" in http.post(PATH, json=body, headers=once("a")).text
    is_error(post_until(http, lambda response: "isn't kept" in response.text, json=body), 409, "conflict")
    assert len(worker.messages) == 1


def test_a_killed_process_leaves_the_key_for_its_lease_only(http, keys, monkeypatch):
    monkeypatch.setattr(idempotency, "LEASE_S", 60)
    monkeypatch.setattr("inference.api.idempotent.RENEW_S", 1000.0)
    answer = http.post(PATH, json=CHAT, headers=once("a"))
    (stored,) = keys.scan_iter(f"{redis_keys.PREFIX}idem:*")
    # As it would be had the process died before its answer: the claim of somebody who renews nothing.
    digest = keys.hget(stored, "digest")
    keys.delete(stored)
    keys.hset(stored, mapping={"digest": digest, "owner": "nobody"})
    keys.expire(stored, idempotency.LEASE_S)
    is_error(http.post(PATH, json=CHAT, headers=once("a")), 409)
    assert 0 < keys.ttl(stored) <= idempotency.LEASE_S
    keys.pexpire(stored, 1)  # the time that passes
    wait_for(lambda: not keys.exists(stored))
    again = http.post(PATH, json=CHAT, headers=once("a"))
    assert again.status_code == 200
    assert again.json()["id"] != answer.json()["id"]


def test_without_the_header_nothing_is_kept(http, keys):
    http.post(PATH, json=CHAT)
    assert not list(keys.scan_iter(f"{redis_keys.PREFIX}idem:*"))


def test_a_forms_random_boundary_is_no_part_of_the_request(monkeypatch):
    def form(boundary: bytes) -> io.BytesIO:
        return io.BytesIO(b"--" + boundary + b"\r\ncontents of a file\r\n--" + boundary + b"--\r\n")

    def digest(boundary: bytes, chunk: int) -> str:
        monkeypatch.setattr("inference.api.idempotent._CHUNK_BYTES", chunk)
        stream = form(boundary)
        found = _stream_digest(stream, b"head", boundary)
        assert stream.tell() == 0
        return found

    wanted = digest(b"abc123", 1 << 20)
    for chunk in range(1, 40):
        assert digest(b"zyxwvutsrq", chunk) == wanted
    assert _stream_digest(io.BytesIO(b"contents"), b"head", b"abc123") != wanted


def test_the_document_names_header_and_refusals():
    from blazr_site.api_docs import openapi_document

    paths = openapi_document()["paths"]
    operation = paths[PATH]["post"]
    assert any(item["name"] == "Idempotency-Key" for item in operation["parameters"])
    assert {"409", "422"} <= set(operation["responses"])
    assert not any("Idempotency-Key" in str(methods) for path, methods in paths.items() if path.startswith("/registry"))


@pytest.mark.parametrize(
    "body", [{"endpoint": "chat", "body": CHAT}, {"jobs": 2 * [{"endpoint": "chat", "body": CHAT}]}]
)
def test_jobs_have_the_header_s_key_in_their_rows(http, keys, body):
    """They need nothing in Redis, so a retry never waits for the lease of a process that was killed."""
    first = http.post("/api/jobs", json=body, headers=once("jobs")).json()["data"]
    assert not list(keys.scan_iter(f"{redis_keys.PREFIX}idem:*"))
    again = http.post("/api/jobs", json=body, headers=once("jobs")).json()["data"]
    assert [job["id"] for job in again] == [job["id"] for job in first]
    assert len({job["id"] for job in first}) == len(first)
    other = http.post("/api/jobs", json=body, headers=once("others")).json()["data"]
    assert not {job["id"] for job in other} & {job["id"] for job in first}
    more = {"jobs": 3 * [{"endpoint": "chat", "body": CHAT}]}
    is_error(http.post("/api/jobs", json=more, headers=once("jobs")), 422, "idempotency_key_reused")
    assert GenerationJob.objects.count() == 2 * len(first)


def lose_kept_responses(keys) -> None:
    """What is left when a process ends between the commit and the storing of its response."""
    for key in keys.scan_iter(f"{redis_keys.PREFIX}idem:*"):
        keys.delete(key)


def test_files_and_batches_have_the_key_in_their_rows(http, keys, settings, tmp_path):
    settings.BLAZR_FILES_DIR = tmp_path / "files"

    def upload(content: bytes) -> httpx.Response:
        form = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
        return http.post("/v1/files", headers=once("file"), **form)

    def create(window: str) -> httpx.Response:
        file_id = StoredFile.objects.get().file_id
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": window}
        return http.post("/v1/batches", json=body, headers=once("batch"))

    for send, value, other in ((upload, b"{}\n", b"{} \n"), (create, "24h", "12h")):
        first = send(value)
        lose_kept_responses(keys)
        assert send(value).json()["id"] == first.json()["id"]
        lose_kept_responses(keys)
        is_error(send(other), 422, "idempotency_key_reused")
    assert (StoredFile.objects.count(), Batch.objects.count()) == (1, 1)


def test_a_background_response_has_the_key_in_its_job(http, keys, checkpoint):
    body = {"model": "tiny", "input": "Hi", "background": True}
    first = http.post("/v1/responses", json=body, headers=once("a"))
    lose_kept_responses(keys)
    again = http.post("/v1/responses", json=body, headers=once("a"))
    assert again.json()["id"] == first.json()["id"]
    assert GenerationJob.objects.count() == 1
    lose_kept_responses(keys)
    is_error(http.post("/v1/responses", json={**body, "input": "Ho"}, headers=once("a")), 422, "idempotency_key_reused")
