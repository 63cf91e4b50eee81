"""Shapes of responses in the OpenAPI document, against real responses."""

from __future__ import annotations

from typing import Any

from tests.inference.api.openai.test_views import documented_answer
from tests.inference.api.openai.test_views_openai_client import entry
from tests.inference.api.scripted_worker import Reply
from tests.inference.api.test_base import CHAT


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
