"""POST /v1/rerank: documents by the cosine of their vectors and the query's."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from inference.errors import PromptTooLong
from tests.inference.api.openai.test_embeddings import refused
from tests.inference.api.openai.test_views import documented_answer
from tests.inference.api.scripted_worker import Reply

VECTORS = {"query": (2.0, 0.0), "same": (5.0, 0.0), "near": (1.0, 1.0), "far": (0.0, 3.0), "against": (-1.0, 0.0)}
BODY: dict[str, Any] = {"model": "tiny", "query": "query", "documents": ["far", {"text": "same"}, "against", "near"]}


def embed(reply: Reply):
    yield reply.start()
    for number, item in enumerate(reply.message["prompt"]["inputs"]):
        data = base64.b64encode(np.array(VECTORS[item["text"]], dtype="<f4").tobytes()).decode()
        yield reply.delta("", choice=number, token_ids=[], embedding=data, finish_reason="stop")
    yield reply.done()


@pytest.fixture
def http(live_url, worker):
    worker.script = embed
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def test_documents_come_best_first(document, http):
    response = http.post("/v1/rerank", json=BODY)
    documented_answer(document, "/v1/rerank", "post", response)
    results = response.json()["results"]
    assert [item["document"]["text"] for item in results] == ["same", "near", "far", "against"]
    assert [item["index"] for item in results] == [1, 3, 0, 2]
    assert [item["relevance_score"] for item in results] == pytest.approx([1.0, 0.5**0.5, 0.0, -1.0], abs=1e-6)
    assert response.json()["usage"]["total_tokens"] == 5


def test_only_the_best_and_without_their_texts(http, worker):
    body = {**BODY, "top_n": 2, "return_documents": False, "pooling": "last", "keep_alive": 9}
    response = http.post("/v1/rerank", json=body)
    assert [item["index"] for item in response.json()["results"]] == [1, 3]
    assert all("document" not in item for item in response.json()["results"])
    assert (worker.messages[-1]["pooling"], worker.messages[-1]["keep_alive_s"]) == ("last", 9)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ["a"]}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", {"title": "b"}]}, "documents"),
        ({"documents": ["a"] * 2048}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"pooling": "max"}, "pooling"),
        ({"max_chunks_per_doc": 3}, "max_chunks_per_doc"),
    ],
)
def test_requests_that_are_wrong(http, body, param):
    refused(http.post("/v1/rerank", json={**BODY, **body}), 400, param)


def test_errors_name_the_document(http, worker):
    def too_long(reply: Reply):
        yield reply.error(PromptTooLong.of(8, 9, noun="input 2", param="input"))

    worker.script = too_long
    response = http.post("/v1/rerank", json=BODY)
    refused(response, 400, "documents")
    assert "your documents[1] resulted in 9 tokens" in response.json()["error"]["message"]
