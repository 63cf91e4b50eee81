"""POST /v1/embeddings: the form of requests and answers. The vectors themselves: ``engine/test_pooling``."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from inference.dialects.openai.embeddings import INPUTS_PER_MESSAGE, EmbeddingRequestSerializer
from inference.errors import GenerationFailed, InvalidRequest
from inference.values.plan import GenerationPlan
from inference.values.tokenizer_spec import TokenizerSpec
from tests.inference.api.openai.test_views import documented_answer
from tests.inference.api.scripted_worker import Reply
from tests.inference.api.test_base import is_error
from tests.inference.rows import make_checkpoint

WIDTH = 4


def vector(number: int) -> np.ndarray:
    return np.array([3.0, 4.0, float(number), 0.0], dtype="<f4")


def embed(reply: Reply):
    """Answers input n of the whole request with ``vector(n)``, the last one first."""
    first = INPUTS_PER_MESSAGE * int(reply.message["request_id"].partition("-")[2].partition("-")[2] or 0)
    yield reply.start()
    for number in reversed(range(len(reply.message["prompt"]["inputs"]))):
        data = base64.b64encode(vector(first + number).tobytes()).decode()
        yield reply.delta("", choice=number, token_ids=[], embedding=data, finish_reason="stop")
    yield reply.done()


def refused(response: httpx.Response, status: int, param: str) -> None:
    assert is_error(response, status)["param"] == param, response.text


@pytest.fixture
def http(live_url, worker):
    worker.script = embed
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def test_openai_s_client_reads_floats_and_base64(client, worker, http):
    for encoding in ("float", "base64", openai.omit):
        found = client.embeddings.create(model="tiny", input=["a", "b"], encoding_format=encoding)
        assert found.object == "list"
        assert found.model == "tiny"
        assert [item.index for item in found.data] == [0, 1]
        assert (found.usage.prompt_tokens, found.usage.total_tokens) == (5, 5)
        for number, item in enumerate(found.data):
            values = item.embedding
            if isinstance(values, str):
                values = np.frombuffer(base64.b64decode(values), dtype="<f4")
            np.testing.assert_allclose(values, vector(number) / np.linalg.norm(vector(number)), rtol=1e-6)


def test_every_form_of_input(http, worker):
    for given, prompts in (
        ("a", [{"text": "a", "add_special_tokens": True}]),
        (["a", "b"], [{"text": "a", "add_special_tokens": True}, {"text": "b", "add_special_tokens": True}]),
        ([1, 2], [{"token_ids": [1, 2]}]),
        ([[1], [2, 3]], [{"token_ids": [1]}, {"token_ids": [2, 3]}]),
    ):
        response = http.post("/v1/embeddings", json={"model": "tiny", "input": given, "pooling": "cls"})
        assert response.status_code == 200, response.text
        message = worker.messages[-1]
        assert message["prompt"] == {"inputs": prompts}
        assert message["pooling"] == "cls"
        assert len(response.json()["data"]) == len(prompts)
    http.post("/v1/embeddings", json={"model": "tiny", "input": "a", "add_special_tokens": False})
    assert worker.messages[-1]["prompt"] == {"inputs": [{"text": "a", "add_special_tokens": False}]}
    assert worker.messages[-1]["pooling"] is None


def test_dimensions_are_cut_before_the_length_is_set(http):
    body = {"model": "tiny", "input": "a"}
    cut = http.post("/v1/embeddings", json={**body, "dimensions": 2}).json()["data"][0]["embedding"]
    assert cut == pytest.approx([0.6, 0.8])
    raw = http.post("/v1/embeddings", json={**body, "dimensions": 2, "normalize": False}).json()
    assert raw["data"][0]["embedding"] == [3.0, 4.0]
    refused(http.post("/v1/embeddings", json={**body, "dimensions": WIDTH + 1}), 400, "dimensions")


def test_many_inputs_keep_their_order(http, worker):
    count = 2 * INPUTS_PER_MESSAGE + 3
    worker.messages.clear()
    response = http.post("/v1/embeddings", json={"model": "tiny", "input": ["x"] * count, "normalize": False})
    assert [item["embedding"][2] for item in response.json()["data"]] == list(range(count))
    assert len(worker.messages) == 3
    assert response.json()["usage"]["prompt_tokens"] == 15


def test_an_answer_is_as_documented(document, http):
    body = {"model": "tiny", "input": "a", "user": "me"}
    documented_answer(document, "/v1/embeddings", "post", http.post("/v1/embeddings", json=body))
    body["encoding_format"] = "base64"
    documented_answer(document, "/v1/embeddings", "post", http.post("/v1/embeddings", json=body))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [1, 10**6]}, "input"),
        ({"input": [1] * 4097}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "4"}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "normalize": 1}, "normalize"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "messages": []}, "messages"),
        ({"input": "a", "temperature": 1}, "temperature"),
    ],
)
def test_requests_that_are_wrong(http, body: dict[str, Any], param: str):
    refused(http.post("/v1/embeddings", json={"model": "tiny", **body}), 400, param)


def test_the_model_has_a_say(http):
    tokenizer = TokenizerSpec("none", 100331).to_dict()
    make_checkpoint("wide", inspection={"tokenizer": tokenizer, "spec": {"hidden_size": 8}})
    refused(http.post("/v1/embeddings", json={"model": "wide", "input": "a"}), 400, "input")
    refused(http.post("/v1/embeddings", json={"model": "wide", "input": [1], "dimensions": 9}), 400, "dimensions")
    refused(http.post("/v1/embeddings", json={"model": "missing", "input": "a"}), 404, "model")


def test_errors_of_the_worker_reach_the_client(http, worker):
    def fail(reply: Reply):
        yield reply.start()
        yield reply.error(InvalidRequest("input 1 has 9 tokens.", param="input"))

    worker.script = fail
    refused(http.post("/v1/embeddings", json={"model": "tiny", "input": ["a", "b"]}), 400, "input")

    def stop(reply: Reply):
        yield reply.start()
        yield reply.delta("", choice=0, token_ids=[], finish_reason="abort")
        yield reply.done()

    worker.script = stop
    response = http.post("/v1/embeddings", json={"model": "tiny", "input": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == GenerationFailed.code


def test_a_plan_survives_being_stored():
    plan = EmbeddingRequestSerializer.shared().plan({"model": "m", "input": ["a"] * 70, "dimensions": 3})
    assert GenerationPlan.from_dict(plan.to_dict()) == plan
