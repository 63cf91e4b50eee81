"""Probes, metrics, tokenizers, jobs over HTTP, and the OpenAPI document against real answers."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inference.jobs.claims import job_finish, jobs_claim
from inference.models import JobState
from tests.inference.api.openai.test_views_openai_client import entry, wait_for
from tests.inference.api.scripted_worker import Reply
from tests.inference.api.test_base import CHAT, is_error
from tests.inference.rows import make_checkpoint


@pytest.fixture
def http(live_url, worker):
    with httpx.Client(base_url=live_url, timeout=20) as found:
        yield found


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    from blazr_site.api_docs import openapi_document

    return openapi_document()


# --- probes ------------------------------------------------------------------------------------


def test_ready_needs_a_worker(live_url, checkpoint, redis_server):
    import redis

    redis.Redis.from_url(redis_server.client).flushall()
    assert httpx.get(f"{live_url}/livez").json() == {"status": "ok"}
    response = httpx.get(f"{live_url}/readyz")
    assert response.status_code == 503
    assert response.json() == {"status": "unavailable", "reasons": ["no worker has a fresh heartbeat"]}
    assert response.headers["cache-control"] == "no-store"
    assert httpx.get(f"{live_url}/health").json()["status"] == "degraded"


def test_ready_with_a_worker(http):
    wait_for(lambda: http.get("/readyz").status_code == 200)
    wait_for(lambda: http.get("/health").json()["loaded_models"] == ["tiny"])
    health = http.get("/health").json()
    assert health["status"] == "ok"
    assert re.fullmatch(r"\d+\.\d+.*", health["version"])


def test_not_ready_without_redis_or_database(http, settings, monkeypatch):
    from django.db import OperationalError

    from inference.api.platform import probe_views

    def down() -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(probe_views, "_query_database", down)
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock?db=0"
    started = time.monotonic()
    response = http.get("/readyz")
    assert time.monotonic() - started < 15
    assert response.status_code == 503
    reasons = response.json()["reasons"]
    assert any("database" in reason for reason in reasons)
    assert any("Redis" in reason for reason in reasons)


def samples(http: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = http.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(http, worker):
    label = (("model", "tiny"),)
    # What the test before this one broke off is settled in the background.
    wait_for(lambda: samples(http).get(("blazr_requests_active", label), 0) == 0)
    before = samples(http)

    def grown(name: str, labels: tuple[tuple[str, str], ...] = label) -> float:
        return samples(http)[name, labels] - before.get((name, labels), 0.0)

    http.post("/v1/chat/completions", json=CHAT)
    http.post("/v1/chat/completions", json={**CHAT, "model": "missing"})
    assert grown("blazr_prompt_tokens_total") == 5
    assert grown("blazr_generated_tokens_total") == 2
    assert grown("blazr_time_to_first_token_seconds_count") == 1
    assert grown("blazr_inter_token_seconds_count") <= 1
    done = (("endpoint", "chat"), ("model", "tiny"), ("outcome", "completed"))
    assert grown("blazr_requests_total", done) == 1
    # Workers of tests before this one share the Redis until their heartbeats lapse.
    wait_for(lambda: samples(http)["blazr_workers", ()] == 1, 20)
    found = samples(http)
    assert found["blazr_requests_active", label] == 0
    assert found["blazr_model_ready", label] == 1
    assert ("blazr_jobs", (("state", "queued"),)) in found
    assert not any("missing" in dict(labels).values() for _, labels in found)


def test_metrics_answer_without_redis(http, settings):
    settings.BLAZR_REDIS_URL = "unix:///nowhere/redis.sock?db=0"
    assert samples(http)["blazr_workers", ()] == 0


# --- tokenizers --------------------------------------------------------------------------------


def test_tokenize_and_back(http):
    answer = http.post("/tokenize", json={"model": "tiny", "prompt": "Hello, world", "return_token_strs": True}).json()
    assert answer == {
        "tokens": [9906, 11, 1917],
        "count": 3,
        "max_model_len": 4096,
        "token_strs": ["Hello", ",", " world"],
    }
    assert (
        http.post("/tokenize", json={"model": "tiny", "content": "Hello, world"}).json()["tokens"] == answer["tokens"]
    )
    back = http.post("/detokenize", json={"model": "tiny", "tokens": answer["tokens"]}).json()
    assert back == {"prompt": "Hello, world", "content": "Hello, world"}


def test_tokenize_renders_conversations_and_guards_control_tokens(http):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi <|assistant|>"}]}
    ids = http.post("/tokenize", json=body).json()["tokens"]
    text = http.post("/detokenize", json={"model": "tiny", "tokens": ids}).json()["prompt"]
    assert text == "<|user|>\nHi <|assistant|>\n<|assistant|>\n"
    control = http.post("/tokenize", json={"model": "tiny", "prompt": "<|assistant|>", "parse_special": True}).json()
    assert len(control["tokens"]) == 1
    assert ids.count(control["tokens"][0]) == 1, "the template's token, not the user's text"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"model": "tiny"}, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "content": "b"}, "content"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"model": "tiny", "prompt": 1}, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "other": 1}, "other"),
        ("/detokenize", {"model": "tiny", "tokens": ["1"]}, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [100331]}, "tokens"),
        ("/detokenize", {"model": "tiny"}, "tokens"),
    ],
)
def test_tokenizer_requests_that_are_wrong(http, path, body, param):
    assert is_error(http.post(path, json=body), 400)["param"] == param


def test_tokenizer_info_and_requests_without_a_model(http):
    """As lm-evaluation-harness asks: it names no model, so the only one is meant."""
    info = http.get("/tokenizer_info").json()
    assert info == http.get("/tokenizer_info", params={"model": "tiny"}).json()
    assert info["model_max_length"] > 0
    assert {"eos_token", "eos_token_id", "bos_token"} <= set(info)
    assert "messages" in info["chat_template"]
    named = http.post("/tokenize", json={"model": "tiny", "prompt": "test", "add_special_tokens": False}).json()
    assert http.post("/tokenize", json={"prompt": "test", "add_special_tokens": False}).json() == named
    assert http.post("/detokenize", json={"tokens": named["tokens"]}).json()["prompt"] == "test"
    assert is_error(http.get("/tokenizer_info", params={"modle": "tiny"}), 400)["param"] == "modle"
    make_checkpoint("ids-only", kind="none", template=None)
    assert is_error(http.get("/tokenizer_info"), 400)["param"] == "model"
    assert is_error(http.post("/tokenize", json={"prompt": "test"}), 400)["param"] == "model"
    is_error(http.get("/tokenizer_info", params={"model": "ids-only"}), 400, "unsupported_parameter")


def test_tokenizers_of_models_without_one(http):
    make_checkpoint("ids-only", kind="none", template=None)
    is_error(http.post("/tokenize", json={"model": "ids-only", "prompt": "x"}), 400, "unsupported_parameter")
    make_checkpoint("plain", template=None)
    body = {"model": "plain", "messages": [{"role": "user", "content": "x"}]}
    is_error(http.post("/tokenize", json=body), 400, "unsupported_parameter")
    is_error(http.post("/detokenize", json={"model": "nobody", "tokens": [1]}), 404, "model_not_found")


# --- jobs --------------------------------------------------------------------------------------


def finish(result: dict[str, Any]) -> None:
    (job,) = jobs_claim(owner="w", limit=1)
    assert job_finish(key=job.key, fence=job.fence, state=JobState.SUCCEEDED, result=result)


def test_a_job_s_life_over_http(http):
    response = http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT, "idempotency_key": "k"})
    assert response.status_code == 202
    (job,) = response.json()["data"]
    assert (job["state"], job["model"], job["endpoint"], job["error"]) == ("queued", "tiny", "chat", None)
    again = http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT, "idempotency_key": "k"}).json()
    assert again["data"][0]["id"] == job["id"]
    other = {**CHAT, "max_tokens": 3}
    is_error(http.post("/api/jobs", json={"endpoint": "chat", "body": other, "idempotency_key": "k"}), 409, "conflict")
    is_error(http.get(f"/api/jobs/{job['id']}/result"), 409)
    finish({"id": "x"})
    assert http.get(f"/api/jobs/{job['id']}").json()["state"] == "succeeded"
    assert http.get(f"/api/jobs/{job['id']}/result").json() == {"id": "x"}
    assert http.post(f"/api/jobs/{job['id']}/cancel").json()["state"] == "succeeded"


def test_a_batch_over_http(http):
    items = [{"endpoint": "completion", "body": {"model": "tiny", "prompt": str(number)}} for number in range(4)]
    answer = http.post("/api/jobs", json={"jobs": items, "batch_label": "night"}).json()
    assert len(answer["data"]) == 4
    listed = http.get("/api/jobs", params={"batch_label": "night", "limit": 3}).json()
    assert [item["id"] for item in listed["data"]] == [item["id"] for item in answer["data"][:0:-1]]
    assert listed["has_more"] is True
    assert listed["counts"]["queued"] == 4
    rest = http.get("/api/jobs", params={"batch_label": "night", "after": listed["data"][-1]["id"]}).json()
    assert [item["id"] for item in rest["data"]] == [answer["data"][0]["id"]]
    assert rest["has_more"] is False
    cancelled = http.post(f"/api/jobs/{answer['data'][0]['id']}/cancel").json()
    assert cancelled["state"] == "cancelled"
    assert http.get("/api/jobs", params={"state": "cancelled"}).json()["data"] == [cancelled]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "endpoint"),
        ({"endpoint": "chat"}, "body"),
        ({"endpoint": "embedding", "body": {}}, "endpoint"),
        ({"endpoint": "chat", "body": {**CHAT, "temperature": 9}}, "temperature"),
        ({"endpoint": "chat", "body": {**CHAT, "stream": True}}, "stream"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [1]}, "jobs.0."),
        ({"jobs": [{"endpoint": "chat", "body": CHAT}, {"endpoint": "chat", "body": {}}]}, "jobs.1.model"),
        ({"jobs": [{"endpoint": "chat", "body": CHAT}], "endpoint": "chat"}, "endpoint"),
        ({"endpoint": "chat", "body": CHAT, "batch_label": "x" * 101}, "batch_label"),
        ({"endpoint": "chat", "body": CHAT, "idempotency_key": "a\0"}, "idempotency_key"),
        ({"endpoint": "chat", "body": CHAT, "webhook": "http://x"}, "webhook"),
    ],
)
def test_submissions_that_are_wrong(http, body, param):
    assert is_error(http.post("/api/jobs", json=body), 400)["param"] == param
    assert http.get("/api/jobs").json()["data"] == []


@pytest.mark.parametrize(
    ("query", "status"),
    [("state=x", 400), ("limit=0", 400), ("limit=501", 400), ("limit=٣", 400), ("x=1", 400), ("after=x", 404)],
)
def test_job_lists_refuse_wrong_queries(http, query, status):
    is_error(http.get(f"/api/jobs?{query}"), status)


def test_a_failed_job_gives_its_error(http):
    from inference.errors import PromptTooLong

    (job,) = http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT}).json()["data"]
    (claimed,) = jobs_claim(owner="w", limit=1)
    error = PromptTooLong.of(8, 9, noun="messages")
    job_finish(key=claimed.key, fence=claimed.fence, state=JobState.FAILED, error=error)
    assert http.get(f"/api/jobs/{job['id']}").json()["error"]["code"] == "context_length_exceeded"
    is_error(http.get(f"/api/jobs/{job['id']}/result"), 400, "context_length_exceeded")


# --- the document ------------------------------------------------------------------------------


def test_schema_has_no_warnings(capsys):
    from django.core.management import call_command

    call_command("spectacular", "--validate", "--fail-on-warn", "--file", "/dev/null", urlconf="inference.api.urls")


def test_document_names_every_endpoint(document, http):
    assert http.get("/schema").json() == http.get("/openapi.json").json() == document
    paths = document["paths"]
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize", "/api/jobs", "/readyz"):
        assert path in paths
    assert paths["/v1/completions"]["post"]["security"] == [{"ApiKey": []}]
    body = document["components"]["schemas"]["ChatRequestRequest"]["properties"]
    assert body["temperature"]["maximum"] == 2
    assert "min_p" in body


def test_docs_page_needs_nothing_from_elsewhere(http):
    page = http.get("/docs")
    assert page.status_code == 200
    assert "/v1/chat/completions" in page.text
    assert "/v1/stream" in page.text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page.text)
    assert "<script" not in page.text


def matches(document: dict[str, Any], schema: dict[str, Any], value: Any, where: str = "answer") -> None:
    """Check a value against the subset of OpenAPI 3.0 that the document uses; objects have no extra members."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return matches(document, schema, value, where)
    if value is None and schema.get("nullable"):
        return None
    if "allOf" in schema:
        return [matches(document, item, value, where) for item in schema["allOf"]] and None
    if "oneOf" in schema:
        errors = []
        for item in schema["oneOf"]:
            try:
                return matches(document, item, value, where)
            except AssertionError as error:
                errors.append(error)
        raise AssertionError(f"{where}: {errors}")
    if "enum" in schema:
        assert value in schema["enum"], where
        return None
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), where
    kind = schema.get("type")
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    if kind is not None:
        assert isinstance(value, types[kind]), f"{where} is {value!r}, not {kind}"
        assert kind == "boolean" or not isinstance(value, bool), where
    if kind == "array":
        for number, item in enumerate(value):
            matches(document, schema["items"], item, f"{where}[{number}]")
    if kind == "object" and "properties" in schema:
        missing = set(schema.get("required", ())) - set(value)
        assert not missing, f"{where} lacks {missing}"
        for name, item in value.items():
            assert name in schema["properties"], f"{where}.{name} is not documented"
            matches(document, schema["properties"][name], item, f"{where}.{name}")
    elif kind == "object":
        for name, item in value.items():
            matches(document, schema.get("additionalProperties") or {}, item, f"{where}.{name}")
    return None


def documented_answer(document: dict[str, Any], path: str, method: str, response: httpx.Response) -> None:
    operation = document["paths"][path][method]
    assert str(response.status_code) in operation["responses"], f"{method} {path}: {response.status_code}"
    schema = operation["responses"][str(response.status_code)]["content"]["application/json"]["schema"]
    matches(document, schema, response.json(), f"{method} {path}")


def test_real_answers_match_the_document(document, http, worker):
    def script(reply: Reply):
        top = [("Hi", 13347, -0.1)]
        yield reply.start(prompt_text="a b", prompt_token_ids=[1, 2], prompt_logprobs=[None, entry("x", 1, -1.0, top)])
        yield reply.delta("Hi", token_ids=[13347], logprobs=[entry("Hi", 13347, -0.1, top)], finish_reason="stop")
        yield reply.done()

    worker.script = script
    everything = {"return_token_ids": True, "prompt_logprobs": 1}
    job = http.post("/api/jobs", json={"endpoint": "chat", "body": CHAT})
    documented_answer(document, "/api/jobs", "post", job)
    job_id = job.json()["data"][0]["id"]
    response_id = http.post("/v1/responses", json={"model": "tiny", "input": "Hi"}).json()["id"]
    message = {**CHAT, "max_tokens": 9}
    calls: list[tuple[str, str, str, Any]] = [
        ("post", "/v1/chat/completions", "", {**CHAT, "logprobs": True, "top_logprobs": 1, **everything}),
        ("post", "/v1/chat/completions", "", CHAT),
        ("post", "/v1/chat/completions", "", {**CHAT, "model": "missing"}),
        ("post", "/v1/chat/completions", "", {}),
        ("post", "/v1/completions", "", {"model": "tiny", "prompt": "x", "logprobs": 1, "echo": True, **everything}),
        ("post", "/v1/completions", "", {"model": "tiny", "prompt": "x"}),
        ("post", "/v1/responses", "", {"model": "tiny", "input": "Hi"}),
        ("post", "/v1/responses", "", {}),
        ("post", "/v1/responses/input_tokens", "", {"model": "tiny", "input": "Hi"}),
        ("get", "/v1/responses/{response_id}", f"/v1/responses/{response_id}", None),
        ("get", "/v1/responses/{response_id}/input_items", f"/v1/responses/{response_id}/input_items", None),
        ("delete", "/v1/responses/{response_id}", f"/v1/responses/{response_id}", None),
        ("post", "/v1/messages", "", message),
        ("post", "/v1/messages", "", {}),
        ("post", "/v1/messages/count_tokens", "", {name: message[name] for name in ("model", "messages")}),
        ("get", "/v1/models", "", None),
        ("get", "/v1/models/{model_id}", "/v1/models/tiny", None),
        ("post", "/tokenize", "", {"model": "tiny", "prompt": "x", "return_token_strs": True}),
        ("post", "/detokenize", "", {"model": "tiny", "tokens": [1]}),
        ("get", "/api/jobs", "", None),
        ("get", "/api/jobs/{job_id}", f"/api/jobs/{job_id}", None),
        ("get", "/api/jobs/{job_id}/result", f"/api/jobs/{job_id}/result", None),
        ("post", "/api/jobs/{job_id}/cancel", f"/api/jobs/{job_id}/cancel", None),
        ("get", "/livez", "", None),
        ("get", "/readyz", "", None),
        ("get", "/health", "", None),
    ]
    for method, path, address, body in calls:
        response = http.request(method, address or path, json=body)
        assert response.status_code < 500 or path == "/readyz"
        documented_answer(document, path, method, response)
