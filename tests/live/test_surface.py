"""Embeddings, rerank, Ollama, aliases and lifecycle on a real server with the demo model."""

from __future__ import annotations

import json
import threading

import httpx
import numpy as np
import openai
import pytest

from tests.live.conftest import LiveServer, wait_until


@pytest.fixture
def http(server: LiveServer):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found


@pytest.fixture
def ollama(server: LiveServer):
    import ollama

    found = ollama.Client(host=server.url)
    yield found
    found._client.close()


def test_embeddings_of_the_demo_model(server, http):
    texts = ["a list of numbers", "the socket was closed", "x"]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        together = [np.array(item.embedding) for item in client.embeddings.create(model="demo", input=texts).data]
        for text, vector in zip(texts, together, strict=True):
            assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
            (alone,) = client.embeddings.create(model="demo", input=text, encoding_format="float").data
            np.testing.assert_allclose(alone.embedding, vector, atol=1e-4)
        ids = http.post("/tokenize", json={"model": "demo", "content": texts[0]}).json()["tokens"]
        (by_ids,) = client.embeddings.create(model="demo", input=ids).data
        np.testing.assert_allclose(by_ids.embedding, together[0], atol=1e-4)
        short = client.embeddings.create(model="demo", input=texts[0], dimensions=8).data[0].embedding
        assert len(short) == 8
        with pytest.raises(openai.BadRequestError, match="your input 1 resulted in"):
            client.embeddings.create(model="demo", input=["a", "word " * 3000])
    scores = http.post(
        "/v1/rerank", json={"model": "demo", "query": texts[0], "documents": [texts[1], texts[0]]}
    ).json()["results"]
    assert scores[0]["index"] == 1
    assert scores[0]["relevance_score"] == pytest.approx(1.0, abs=1e-4)


def test_ollama_s_client_on_the_demo_model(server, ollama, http):
    options = {"temperature": 0, "num_predict": 8}
    raw = ollama.generate("demo", "The statement", raw=True, options=options)
    plain = server.complete(max_tokens=8).json()
    assert raw.response == plain["choices"][0]["text"]
    assert raw.eval_count == 8
    assert raw.done_reason == "length"
    streamed = list(ollama.generate("demo", "The statement", raw=True, options=options, stream=True))
    assert "".join(item.response for item in streamed) == raw.response
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = ollama.chat(
        "demo", [{"role": "user", "content": "A number?"}], format=schema, options={"seed": 1, "num_predict": 200}
    )
    if answer.done_reason == "stop":  # a token limit may cut it off
        assert isinstance(json.loads(answer.message.content)["n"], int)
    assert len(ollama.embed("demo", ["a", "word " * 3000]).embeddings) == 2  # the long one is cut
    assert ollama.generate("demo", keep_alive=-1).done_reason == "load"
    wait_until(lambda: "demo" in [item.model for item in ollama.ps().models])
    assert "completion" in ollama.show("demo").capabilities


def test_an_alias_serves_and_the_model_s_state_is_told(http, server):
    boss = server.admin_headers
    assert http.post("/v1/models/live/promote", json={"model": "demo"}, headers=boss).status_code == 200
    try:
        found = http.post("/v1/completions", json={"model": "live", "prompt": "The", "max_tokens": 1})
        assert found.json()["model"] == "demo"
    finally:
        assert http.delete("/v1/models/live", headers=boss).status_code == 200
    # An earlier test may have killed the worker: the answer may be here before the next one's word on what it holds,
    # and before the lease of the other one is over.
    wait_until(lambda: http.get("/v1/models/demo/status").json()["status"] == "ready", 60, "the word of the worker")

    def only_worker() -> dict | None:
        found = http.get("/v1/models/demo/fit").json()["workers"]
        return found[0] if len(found) == 1 else None

    worker = wait_until(only_worker, 60, "the end of other workers")
    assert worker["verdict"] == "resident"
    assert worker["needed_bytes"] >= worker["weights_bytes"] + worker["states_bytes"]
    assert worker["full_sequences"] >= 1


def test_a_running_request_is_listed_and_cancelled(http, server):
    begun, chunks = threading.Event(), []

    def run() -> None:
        # So many choices take half a minute.
        _, found = server.stream(lambda number: begun.set(), max_tokens=900, ignore_eos=True, temperature=1.0, n=128)
        chunks.extend(found)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    request = http.get("/v1/requests").json()["data"][-1]  # the newest
    assert (request["model"], request["owner"], request["state"]) == ("demo", "local", "running")
    assert http.post(f"/v1/requests/{request['id']}/cancel").json()["cancelled"] is True
    thread.join(60)
    assert "cancelled" in chunks[-1]["error"]["message"]
    assert request["id"] not in [item["id"] for item in http.get("/v1/requests").json()["data"]]
