"""Saved states over HTTP, with real workers: saved, used, forked, moved between servers, and refused."""

from __future__ import annotations

import httpx
import orjson
import pytest

from inference.llm.state_header import read_state_header
from tests.live.conftest import wait_until

pytestmark = pytest.mark.live
TEXT = "The statement of a function is " * 8
OPTIONS = {"model": "demo", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        assert save(found, "text", prompt=TEXT).status_code == 200
        yield found
        for state in found.get("/v1/states").json()["data"]:
            found.delete(f"/v1/states/{state['name']}")


def save(http: httpx.Client, name: str, **body: object) -> httpx.Response:
    return http.post("/v1/states", json={"name": name, "model": "demo", **body})


def complete(http: httpx.Client, **body: object) -> dict:
    response = http.post("/v1/completions", json={**OPTIONS, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_state_is_gone_on_from_and_forked(http):
    state = http.get("/v1/states/text").json()
    assert (state["name"], state["model"], state["takes_messages"], state["pinned"]) == ("text", "demo", False, False)
    for question in ("a value", " of the list", "a value"):
        warm, cold = complete(http, state="text", prompt=question), complete(http, prompt=TEXT + question)
        # The border may be tokenised otherwise than the whole text, so the ids of the whole prompt are compared.
        ids = complete(http, state="text", prompt=question, return_token_ids=True)["choices"][0]["prompt_token_ids"]
        again = complete(http, prompt=ids)
        assert warm["choices"][0]["text"] == again["choices"][0]["text"]
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= state["tokens"] - 1
        assert cold["usage"]["prompt_tokens"] <= warm["usage"]["prompt_tokens"]
    further = save(http, "further", state="text", prompt=" and more", pinned=True).json()
    assert further["tokens"] > state["tokens"] and further["pinned"] and further["expires_at"] is None
    assert complete(http, state="further", prompt="")["usage"]["prompt_tokens"] == further["tokens"]


def test_a_conversation_goes_on(http):
    messages = [{"role": "user", "content": "What is a list?"}, {"role": "assistant", "content": "A row of values."}]
    saved = save(http, "talk", messages=messages)
    assert saved.status_code == 200 and saved.json()["takes_messages"], saved.text
    question = {"role": "user", "content": "And a set?"}
    warm, cold = (
        http.post("/v1/chat/completions", json={**OPTIONS, **body}).json()
        for body in ({"state": "talk", "messages": [question]}, {"messages": [*messages, question]})
    )
    assert warm["choices"][0]["message"] == cold["choices"][0]["message"]
    assert warm["usage"]["prompt_tokens"] == cold["usage"]["prompt_tokens"]
    refused = http.post("/v1/chat/completions", json={**OPTIONS, "state": "text", "messages": [question]})
    assert refused.status_code == 400 and "which messages can't follow" in refused.json()["error"]["message"]


def test_a_state_is_downloaded_and_uploaded(http, tmp_path):
    content = http.get("/v1/states/text/content")
    (tmp_path / "a.state").write_bytes(content.content)
    assert read_state_header(tmp_path / "a.state").num_tokens == http.get("/v1/states/text").json()["tokens"]
    uploaded = http.post("/v1/states/copy/content", files={"file": ("a.state", content.content)})
    assert uploaded.status_code == 200, uploaded.text
    assert complete(http, state="copy", prompt="x")["choices"] == complete(http, state="text", prompt="x")["choices"]
    changed = bytearray(content.content)
    changed[-1] ^= 1
    http.post("/v1/states/changed/content", files={"file": ("a.state", bytes(changed))})
    refused = http.post("/v1/completions", json={**OPTIONS, "state": "changed", "prompt": "x"})
    assert refused.status_code == 400 and "is damaged" in refused.json()["error"]["message"]


def test_jobs_and_batches_go_on_from_a_state(http):
    body = {**OPTIONS, "state": "text", "prompt": "a value"}
    expected = complete(http, **body)["choices"][0]["text"]
    (job,) = http.post("/api/jobs", json={"endpoint": "completion", "body": body}).json()["data"]
    path = f"/api/jobs/{job['id']}/result"
    wait_until(lambda: http.get(path).status_code == 200, what="the job")
    assert http.get(path).json()["choices"][0]["text"] == expected
    line = orjson.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body})
    file = http.post("/v1/files", files={"file": ("in.jsonl", line)}, data={"purpose": "batch"}).json()
    order = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = http.post("/v1/batches", json=order).json()
    wait_until(lambda: http.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed", what="the batch")
    output = http.get(f"/v1/batches/{batch['id']}").json()["output_file_id"]
    result = http.get(f"/v1/files/{output}/content").json()["response"]["body"]
    assert result["choices"][0]["text"] == expected and result["usage"]["prompt_tokens_details"]["cached_tokens"] > 10


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"name": "text", "prompt": "a b"}, 409, "There is a state 'text' already"),
        ({"name": "../x", "prompt": "a b"}, 400, "name is '../x'; use 1 to 64"),
        ({"name": "n"}, 400, "give either prompt or messages, not neither"),
        ({"name": "n", "prompt": ["a", "b"]}, 400, "a state has one prompt, this has 2"),
        ({"name": "n", "prompt": "a b", "n": 2}, 400, "n"),
        ({"name": "n", "prompt": "", "state": "text"}, 400, "nothing follows the state"),
        ({"name": "n", "prompt": "a", "state": "none"}, 404, "There is no state 'none'"),
        ({"name": "n", "prompt": [3]}, 400, "a state needs at least 2"),
        ({"name": "n", "prompt": "a b", "expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "3600"),
    ],
)
def test_what_is_refused(http, body, status, words):
    refused = http.post("/v1/states", json={"model": "demo", **body})
    assert refused.status_code == status, refused.text
    assert words in refused.json()["error"]["message"]
    assert "n" not in [state["name"] for state in http.get("/v1/states").json()["data"]]


def test_a_state_is_replaced_pinned_and_deleted(http):
    first = save(http, "later", prompt=TEXT).json()
    second = save(http, "later", prompt="a b c", replace=True).json()
    assert second["tokens"] < first["tokens"]
    assert http.post("/v1/states/later", json={"pinned": True}).json()["expires_at"] is None
    assert http.post("/v1/states/later", json={"pinned": False}).json()["expires_at"] is not None
    assert http.delete("/v1/states/later").json() == {"id": "later", "object": "state", "deleted": True}
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        assert http.request(method, f"/v1/states/later{path}").status_code == 404
    gone = http.post("/v1/completions", json={**OPTIONS, "state": "later", "prompt": "x"})
    assert gone.status_code == 404 and gone.json()["error"]["param"] == "state"


def test_no_file_but_a_state_is_taken(http):
    refused = http.post("/v1/states/odd/content", files={"file": ("a.state", b"no state")})
    assert refused.status_code == 400 and "save it again" in refused.json()["error"]["message"]
    assert http.get("/v1/states/odd").status_code == 404
