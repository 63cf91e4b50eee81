"""suffix, best_of, /infill and /apply-template over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.inference.api.openai.test_embeddings import refused
from tests.inference.api.openai.test_views import documented_answer
from tests.inference.api.openai.test_views_openai_client import entry
from tests.inference.api.scripted_worker import Reply, say
from tests.inference.api.test_base import is_error
from tests.inference.rows import make_checkpoint

GAP = {"model": "tiny", "input_prefix": "def f(", "input_suffix": "):\n"}


@pytest.fixture
def http(live_url, worker):
    with httpx.Client(base_url=live_url, timeout=60) as found:
        yield found


def test_a_suffix_travels_with_its_prompt(client, worker):
    found = client.completions.create(model="tiny", prompt="def f(", suffix="):\n")
    assert found.choices[0].text == "Hello, world"
    assert worker.messages[-1]["prompt"] == {
        "text": "def f(", "suffix": "):\n", "add_special_tokens": True, "parse_special": False,
    }  # fmt: skip


def test_infill_by_llama_cpp_s_names(document, http, worker):
    worker.script = say("x", ", y", finish_reason="stop")
    response = http.post("/infill", json={**GAP, "temperature": 0, "stop": ["\n"], "seed": -1, "cache_prompt": True})
    documented_answer(document, "/infill", "post", response)
    assert response.json() == {
        "content": "x, y", "model": "tiny", "stop": True, "stop_type": "eos", "stopping_word": "",
        "tokens_predicted": 2, "tokens_evaluated": 5, "tokens_cached": 0, "truncated": False,
    }  # fmt: skip
    message = worker.messages[-1]
    assert message["prompt"]["suffix"] == "):\n"
    assert "max_tokens" not in message["params"]
    assert message["params"]["stop"] == ("\n",) or message["params"]["stop"] == ["\n"]
    http.post("/infill", json={**GAP, "n_predict": 7, "seed": 4})
    assert (worker.messages[-1]["params"]["max_tokens"], worker.messages[-1]["params"]["seed"]) == (7, 4)


def test_how_an_infill_ended(http, worker):
    def script(reply: Reply):
        yield reply.start()
        yield reply.delta("x", finish_reason="stop", stop_reason="\n")
        yield reply.done()

    worker.script = script
    found = http.post("/infill", json=GAP).json()
    assert (found["stop_type"], found["stopping_word"]) == ("word", "\n")
    worker.script = say("x", finish_reason="length")
    assert http.post("/infill", json=GAP).json()["stop_type"] == "limit"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 3}, "input_suffix"),
        ({"n_predict": -2}, "n_predict"),
        ({"stream": True}, "stream"),
        ({"prompt": "a"}, "prompt"),
        ({"input_extra": [{"text": "a"}]}, "input_extra"),
        ({"repeat_last_n": 1.1}, "repeat_last_n"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_infills_that_are_wrong(http, body: dict[str, Any], param: str):
    refused(http.post("/infill", json={**GAP, **body}), 400, param)


def test_best_of_shows_the_likeliest(client, worker):
    def script(reply: Reply):
        yield reply.start()
        for choice, logprobs in enumerate([(-2.0, -2.0), (-0.5,), (-1.0, -0.2)]):
            entries = [entry(f"{choice}", 5, logprob, []) for logprob in logprobs]
            ids = [5] * len(entries)
            yield reply.delta(f"text {choice}", choice=choice, token_ids=ids, logprobs=entries, finish_reason="stop")
        yield reply.done()

    worker.script = script
    found = client.completions.create(model="tiny", prompt="a", n=2, best_of=3)
    assert worker.messages[-1]["params"]["n"] == 3
    assert [choice.text for choice in found.choices] == ["text 1", "text 2"]
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.choices[0].logprobs is None
    assert found.usage.completion_tokens == 5


def test_a_conversation_s_text_reads_as_chat_does(document, http):
    body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi <|user|>"}]}
    response = http.post("/apply-template", json=body)
    documented_answer(document, "/apply-template", "post", response)
    text = response.json()["prompt"]
    assert text == "<|user|>\nHi <|user|>\n<|assistant|>\n"
    plain: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    text = http.post("/apply-template", json=plain).json()["prompt"]
    again = {"model": "tiny", "content": text, "parse_special": True, "add_special_tokens": False}
    assert http.post("/tokenize", json=again).json()["tokens"] == http.post("/tokenize", json=plain).json()["tokens"]
    without = http.post("/apply-template", json={**plain, "add_generation_prompt": False})
    assert without.json()["prompt"] == "<|user|>\nHi\n"


def test_templates_that_can_t_be_applied(http):
    make_checkpoint("bare", template=None)
    refused(
        http.post("/apply-template", json={"model": "bare", "messages": [{"role": "user", "content": "a"}]}),
        400,
        "messages",
    )
    refused(http.post("/apply-template", json={"model": "tiny"}), 400, "messages")
    is_error(http.get("/apply-template"), 405)
