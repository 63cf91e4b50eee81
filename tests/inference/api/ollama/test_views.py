"""Ollama's endpoints, with Ollama's own client where it can say it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.inference.api.openai.test_embeddings import embed
from tests.inference.api.scripted_worker import say
from tests.inference.rows import TEMPLATE, make_checkpoint

MESSAGES = [{"role": "user", "content": "Hi"}]


def refused(response: httpx.Response, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    for word in words:
        assert word in response.json()["error"]


# --- chat and generate -------------------------------------------------------------------------


def test_chat_whole_and_streamed(ollama, worker):
    worker.script = say("Hello", ", world", finish_reason="length")
    whole = ollama.chat("tiny", MESSAGES)
    assert (whole.message.role, whole.message.content) == ("assistant", "Hello, world")
    assert (whole.model, whole.done, whole.done_reason) == ("tiny", True, "length")
    assert (whole.prompt_eval_count, whole.eval_count) == (5, 2)
    assert (whole.total_duration, whole.prompt_eval_duration, whole.eval_duration) == (
        20_000_000,
        10_000_000,
        10_000_000,
    )
    lines = list(ollama.chat("tiny:latest", MESSAGES, stream=True))
    assert [item.message.content for item in lines] == ["Hello", ", world", ""]
    assert [item.done for item in lines] == [False, False, True]
    assert lines[-1].eval_count == 2
    assert lines[0].model == "tiny:latest"
    assert worker.messages[-1]["prompt"]["messages"] == MESSAGES


def test_generate_uses_the_template_unless_raw(ollama, worker):
    assert ollama.generate("tiny", "Hi", system="Be brief").response == "Hello, world"
    assert worker.messages[-1]["prompt"]["messages"] == [{"role": "system", "content": "Be brief"}, *MESSAGES]
    assert "max_tokens" not in worker.messages[-1]["params"]
    ollama.generate("tiny", "Hi", raw=True)
    assert worker.messages[-1]["prompt"]["text"] == "Hi"
    assert "max_tokens" not in worker.messages[-1]["params"]
    ollama.generate("tiny", "def f(", suffix="):", options={"num_predict": 3})
    assert worker.messages[-1]["prompt"]["suffix"] == "):"
    assert worker.messages[-1]["params"]["max_tokens"] == 3
    lines = list(ollama.generate("tiny", "Hi", stream=True))
    assert "".join(item.response for item in lines) == "Hello, world"
    assert lines[-1].done_reason == "stop"


def test_models_without_a_template_continue_the_prompt(ollama, worker):
    row = make_checkpoint("bare", template=None)
    worker.checkpoint_ids.add(str(row.pk))
    ollama.generate("bare", "Hi")
    assert worker.messages[-1]["prompt"]["text"] == "Hi"


def test_options_are_passed_on_by_our_names(ollama, worker):
    options = {
        "num_predict": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 4, "stop": ["x"],
        "repeat_penalty": 1.2, "repeat_last_n": -1, "presence_penalty": 0.5, "frequency_penalty": 0.25,
        "num_ctx": 4096, "tfs_z": 1.0, "typical_p": 0.9, "dry_multiplier": 0.8, "dry_sequence_breakers": ["x"],
        "mirostat": 0,
    }  # fmt: skip
    ollama.chat("tiny", MESSAGES, options=options)
    assert worker.messages[-1]["params"] == {
        "max_tokens": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 4, "stop": ["x"],
        "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25, "typical_p": 0.9,
        "dry_multiplier": 0.8, "dry_sequence_breakers": ["x"],
    }  # fmt: skip
    ollama.chat("tiny", MESSAGES, options={"num_predict": -1}, keep_alive="10m")
    assert "max_tokens" not in worker.messages[-1]["params"]
    assert worker.messages[-1]["keep_alive_s"] == 600


@pytest.mark.parametrize(
    ("given", "seconds"), [(30, 30), (-1, -1), (0, 0), ("1h30m", 5400), ("300ms", 0.3), ("-5m", -1), ("45", 45)]
)
def test_durations_of_keep_alive(http, worker, given, seconds):
    body = {"model": "tiny", "messages": MESSAGES, "stream": False, "keep_alive": given}
    assert http.post("/api/chat", json=body).status_code == 200
    assert worker.messages[-1]["keep_alive_s"] == seconds


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"options": {"num_predict": -3}}, ["num_predict", "is -3"]),
        ({"options": {"temperature": "1"}}, ["temperature must be a number"]),
        ({"options": {"num_gpu": 1}}, ["num_gpu", "setting of the server"]),
        ({"options": {"repeat_last_n": 64}}, ["repeat_last_n", "is 64"]),
        ({"options": {"tfs_z": 0.5}}, ["tfs_z"]),
        ({"options": {"mirostat": 3}}, ["mirostat", "from 0 to 2"]),
        ({"options": {"mirostat": 2, "top_k": 40}}, ["mirostat", "leave", "top_k"]),
        ({"options": {"nonsense": 1}}, ["nonsense"]),
        ({"options": 3}, ["options must be an object"]),
        ({"keep_alive": "soon"}, ["keep_alive"]),
        ({"keep_alive": 10**9}, ["keep_alive"]),
        ({"format": 3}, ["format must be"]),
        ({"think": "hard"}, ["think must be"]),
        ({"think": True}, ["no switch for thinking"]),
        ({"template": "x"}, ["template is not supported"]),
        ({"images": ["aa"]}, ["images is not supported"]),
        ({"context": [1]}, ["context is not supported"]),
        ({"nonsense": 1}, ["nonsense"]),
        ({"stream": 1}, ["stream must be"]),
        ({"raw": True, "system": "x"}, ["system needs"]),
        ({"prompt": 3}, ["prompt must be a string"]),
    ],
)
def test_what_generate_refuses(http, body: dict[str, Any], words: list[str]):
    refused(http.post("/api/generate", json={"model": "tiny", "prompt": "Hi", **body}), 400, *words)


def test_thinking_is_switched_in_the_template(http, worker):
    row = make_checkpoint("thinker", template=TEMPLATE + "{{ enable_thinking }}")
    worker.checkpoint_ids.add(str(row.pk))
    body = {"model": "thinker", "messages": MESSAGES, "stream": False, "think": False}
    assert http.post("/api/chat", json=body).status_code == 200
    assert worker.messages[-1]["prompt"]["template_kwargs"] == {"enable_thinking": False}


# --- embeddings --------------------------------------------------------------------------------


def test_embeddings(ollama, worker):
    worker.script = embed
    found = ollama.embed("tiny", ["a", "b"], dimensions=2, keep_alive=5)
    assert [list(item) for item in found.embeddings] == [pytest.approx([0.6, 0.8])] * 2
    assert found.prompt_eval_count == 5
    assert worker.messages[-1]["prompt"]["inputs"][0] == {"text": "a", "truncate": True}
    assert worker.messages[-1]["keep_alive_s"] == 5
    assert len(ollama.embed("tiny", "a", truncate=False).embeddings) == 1
    assert worker.messages[-1]["prompt"]["inputs"] == [{"text": "a", "truncate": False}]
    assert list(ollama.embeddings("tiny", "a").embedding) == [3.0, 4.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "body",
    [{}, {"input": []}, {"input": [1]}, {"input": {"a": 1}}, {"input": "a", "options": {"seed": 1}}],
)
def test_embeddings_that_are_refused(http, worker, body):
    worker.script = embed
    refused(http.post("/api/embed", json={"model": "tiny", **body}), 400)


# --- models ------------------------------------------------------------------------------------


# --- tools, thinking, format -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind"), [("json", "json_object"), ({"type": "object", "properties": {}}, "json_schema")]
)
def test_formats_become_grammars(http, worker, given, kind):
    worker.script = say("{}")
    for path, body in (("chat", {"messages": MESSAGES}), ("generate", {"prompt": "a", "raw": True})):
        response = http.post(f"/api/{path}", json={"model": "tiny", "stream": False, "format": given, **body})
        assert response.status_code == 200, response.text
        assert worker.messages[-1]["params"]["grammar"]["kind"] == kind
