"""What lm-evaluation-harness 0.4.13 sends, and how it reads the answers; bench/lm_eval has tasks for the real thing.

Its code: https://github.com/EleutherAI/lm-evaluation-harness/blob/main/lm_eval/models/openai_completions.py
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import httpx
import pytest

from tests.live.conftest import LiveServer

pytestmark = pytest.mark.live

CONTEXT = "The statement"


@pytest.fixture
def http(server: LiveServer):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found


def loglikelihood_request(prompts: list[list[int]], **members: Any) -> dict[str, Any]:
    return {
        "model": "demo", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234,
        "echo": True, **members,
    }  # fmt: skip


def parsed(answer: dict[str, Any], context_lengths: list[int]) -> list[tuple[float, bool]]:
    """Per prompt, the log-likelihood behind its context, and whether greedy decoding would have said the same."""
    found = []
    choices = sorted(answer["choices"], key=itemgetter("index"))
    for choice, length in zip(choices, context_lengths, strict=True):
        logprobs = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        found.append((sum(logprobs), all(one == max(top.values()) for one, top in zip(logprobs, tops, strict=True))))
    return found


def tokens_of(http: httpx.Client, text: str) -> list[int]:
    body = {"model": "demo", "prompt": text, "add_special_tokens": False}
    return http.post("/tokenize", json=body).json()["tokens"]


def test_loglikelihoods_of_token_ids(http):
    context = tokens_of(http, CONTEXT)
    written = http.post(
        "/v1/completions",
        json=loglikelihood_request([context], echo=False, max_tokens=4, return_token_ids=True),
    ).json()["choices"][0]
    likely, unlikely = [*context, *written["token_ids"]], [*context, *tokens_of(http, " zebra")]
    answer = http.post("/v1/completions", json=loglikelihood_request([likely, unlikely])).json()
    greedy, other = parsed(answer, [len(context)] * 2)
    assert greedy == (pytest.approx(sum(written["logprobs"]["token_logprobs"]), abs=1e-3), True)
    assert other[0] < greedy[0]
    assert not other[1]
    alone = http.post("/v1/completions", json=loglikelihood_request([unlikely])).json()
    assert parsed(alone, [len(context)]) == [pytest.approx(other, abs=1e-3)]


def test_the_generated_token_is_counted_even_if_it_ends_the_text(http):
    """The harness cuts the last entry off: it must be the generated one, never one of the prompt."""
    context = tokens_of(http, CONTEXT)
    eos = http.get("/tokenizer_info", params={"model": "demo"}).json()["eos_token_id"]
    request = loglikelihood_request([context], logit_bias={str(eos): 100})
    (choice,) = http.post("/v1/completions", json=request).json()["choices"]
    assert choice["finish_reason"] == "stop"
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert len(choice["logprobs"][name]) == len(context) + 1


def test_generation_with_stop_strings(http):
    chat = {
        "messages": [{"role": "user", "content": "What is a module?"}], "model": "demo",
        "max_tokens": 24, "temperature": 0, "stop": ["\n\n"], "seed": 1234,
    }  # fmt: skip
    response = http.post("/v1/chat/completions", json=chat)
    assert response.status_code == 200, response.text
    assert "\n\n" not in response.json()["choices"][0]["message"]["content"]
    completion = {
        "prompt": [tokens_of(http, CONTEXT)], "model": "demo", "max_tokens": 24, "temperature": 0,
        "stop": ["\n\n", "<|endoftext|>"], "seed": 1234,
    }  # fmt: skip
    (choice,) = http.post("/v1/completions", json=completion).json()["choices"]
    assert choice["text"]
