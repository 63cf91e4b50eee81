"""Structured output on the real platform: the openai package, the demo model, a job whose worker is killed."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.live.conftest import LiveServer, same_bits, wait_until

pytestmark = pytest.mark.live

MESSAGES: Any = [{"role": "user", "content": "What is a list?"}]


class Type(BaseModel):
    kind: Literal["list", "dict", "set"]
    is_mutable: bool
    methods: list[Literal["append", "pop", "clear"]]


@pytest.fixture
def client(server: LiveServer):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def test_answers_parse_and_streams_say_the_same(client: openai.OpenAI) -> None:
    request: Any = {"model": "demo", "messages": MESSAGES, "max_tokens": 300, "seed": 3, "temperature": 1.2, "n": 2}
    parsed = client.chat.completions.parse(**request, response_format=Type)
    assert all(choice.finish_reason == "stop" and choice.message.parsed for choice in parsed.choices)
    schema = {"type": "json_schema", "json_schema": {"name": "Type", "schema": Type.model_json_schema()}}
    whole = client.chat.completions.create(**request, response_format=schema)
    texts = ["", ""]
    for chunk in client.chat.completions.create(**request, response_format=schema, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    for text in texts:
        Type.model_validate_json(text)
    chosen = client.completions.create(
        model="demo", prompt="The", max_tokens=20, extra_body={"guided_choice": ["yes", "no"]}
    )
    assert chosen.choices[0].text in ("yes", "no")
    with pytest.raises(openai.BadRequestError, match="unclosed group"):
        client.completions.create(model="demo", prompt="The", extra_body={"guided_regex": "(a"})


@same_bits
def test_a_job_follows_its_grammar_across_the_death_of_its_worker(server: LiveServer) -> None:
    pattern = "([a-z]{12} ){70}"
    body = {"model": "demo", "prompt": "The", "max_tokens": 950, "seed": 1, "guided_regex": pattern}
    items = [{"endpoint": "completion", "body": {**body, "seed": seed}} for seed in range(8)]
    bad = {"endpoint": "completion", "body": {**body, "guided_regex": "(a"}}

    def submit() -> list[str]:
        answer = httpx.post(f"{server.url}/api/jobs", json={"jobs": [*items, bad]}, timeout=30)
        return [found["id"] for found in answer.json()["data"]]

    def job(job_id: str, part: str = "") -> Any:
        return httpx.get(f"{server.url}/api/jobs/{job_id}{part}", timeout=30).json()

    def are_finished(job_ids: list[str]) -> bool:
        return all(job(item)["state"] in ("succeeded", "failed", "cancelled") for item in job_ids)

    calm = submit()
    wait_until(lambda: are_finished(calm), 120, "the first batch")
    for _ in range(3):
        stormy = submit()
        wait_until(lambda ids=stormy: sum(job(item)["completion_tokens"] for item in ids) > 8, 60, "some progress")
        os.kill(server.pid_of("worker"), signal.SIGKILL)
        if not are_finished(stormy[:-1]):
            break
    else:  # this process had no processor for as long as the jobs took
        pytest.fail("no kill hit running jobs")
    wait_until(lambda: are_finished(stormy), 120, "the second batch")
    for first, second in zip(calm[:-1], stormy[:-1], strict=True):
        text = job(second, "/result")["choices"][0]["text"]
        assert text == job(first, "/result")["choices"][0]["text"]
        assert re.fullmatch(pattern, text)
    error = job(stormy[-1])["error"]
    assert error["param"] == "guided_regex" and "unclosed group" in json.dumps(error)
