"""The API on the real platform: the openai package, the demo model, queued jobs and crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import httpx
import openai
import pytest

from tests.live.conftest import LiveServer, same_bits, wait_until

pytestmark = pytest.mark.live

MESSAGES: Any = [{"role": "user", "content": "What is a list?"}]


@pytest.fixture
def client(server: LiveServer):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


def submit(server: LiveServer, *prompts: str, **members: Any) -> list[str]:
    body = {"model": "demo", "max_tokens": 24, "temperature": 0.8, "seed": 5, "ignore_eos": True, **members}
    items = [{"endpoint": "completion", "body": {**body, "prompt": prompt}} for prompt in prompts]
    response = httpx.post(f"{server.url}/api/jobs", json={"jobs": items, "batch_label": "live"}, timeout=30)
    assert response.status_code == 202, response.text
    return [job["id"] for job in response.json()["data"]]


def job(server: LiveServer, job_id: str, part: str = "") -> Any:
    return httpx.get(f"{server.url}/api/jobs/{job_id}{part}", timeout=30).json()


def finished(server: LiveServer, job_ids: list[str]) -> bool:
    return all(job(server, job_id)["state"] in ("succeeded", "failed", "cancelled") for job_id in job_ids)


def test_stream_and_whole_answer_agree(client):
    request = {"model": "demo", "messages": MESSAGES, "max_tokens": 24, "seed": 3, "temperature": 0.7}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_choices_differ_and_are_reproducible(client):
    request = {"model": "demo", "prompt": "The list", "n": 3, "max_tokens": 16, "seed": 11, "temperature": 1.0}
    first = client.completions.create(**request)
    again = client.completions.create(**request)
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) > 1


@same_bits
def test_echo_scores_the_same_text_that_was_generated(client):
    made = client.completions.create(model="demo", prompt="The list", max_tokens=8, temperature=0, logprobs=2)
    text = "The list" + made.choices[0].text
    extra = {"return_token_ids": True}
    generated = client.completions.create(
        model="demo", prompt="The list", max_tokens=8, temperature=0, logprobs=2, extra_body=extra
    ).choices[0]
    ids = generated.prompt_token_ids + generated.token_ids
    scored = client.completions.create(model="demo", prompt=ids, max_tokens=0, echo=True, logprobs=2).choices[0]
    assert scored.text == text
    assert scored.logprobs.token_logprobs[0] is None
    assert scored.logprobs.token_logprobs[-8:] == pytest.approx(generated.logprobs.token_logprobs, abs=1e-3)
    assert "".join(scored.logprobs.tokens) == text
    assert scored.logprobs.text_offset[-1] == len(text) - len(scored.logprobs.tokens[-1])


def test_tokenize_counts_what_a_request_uses(server, client):
    answer = httpx.post(f"{server.url}/tokenize", json={"model": "demo", "messages": MESSAGES}, timeout=30).json()
    used = client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=1)
    assert answer["count"] == used.usage.prompt_tokens
    ids = client.chat.completions.create(
        model="demo", messages=MESSAGES, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert ids.prompt_token_ids == answer["tokens"]


def test_the_worker_s_refusals_keep_their_status(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="demo", prompt="x " * 20_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="demo", prompt="a\0b")


@same_bits
def test_32_concurrent_streams_equal_their_lone_runs(server):
    prompts = [f"{word} {number}" for number in range(8) for word in ("The", "A", "If an", "When")]

    async def run() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:

            async def text(prompt: str) -> str:
                stream = await found.completions.create(
                    model="demo", prompt=prompt, max_tokens=32, temperature=0, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

            alone = [await text(prompt) for prompt in prompts]
            return alone, list(await asyncio.gather(*(text(prompt) for prompt in prompts)))

    alone, together = asyncio.run(run())
    assert together == alone


@same_bits
def test_jobs_survive_a_killed_worker_and_say_the_same(server):
    prompts = [f"Function number {number}" for number in range(8)]
    calm = submit(server, *prompts, max_tokens=48)
    wait_until(lambda: finished(server, calm), 120, "the first batch")
    stormy = submit(server, *prompts, max_tokens=48)
    wait_until(lambda: sum(job(server, item)["completion_tokens"] for item in stormy) > 16, 60, "some progress")
    os.kill(server.pid_of("worker"), signal.SIGKILL)
    wait_until(lambda: finished(server, stormy), 120, "the second batch")
    for first, second in zip(calm, stormy, strict=True):
        assert job(server, second)["state"] == "succeeded", job(server, second)
        expected, found = job(server, first, "/result"), job(server, second, "/result")
        assert found["choices"][0]["text"] == expected["choices"][0]["text"]
        assert found["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"] == 48


def test_a_running_job_is_cancelled_within_seconds(server):
    model = httpx.get(f"{server.url}/v1/models/demo", timeout=30).json()
    # Many choices, or the demo model is done before anybody can cancel it: one takes a second and a half.
    (item,) = submit(server, "Never ending", max_tokens=model["max_model_len"] - 32, n=128)
    wait_until(lambda: job(server, item)["completion_tokens"] > 0, 60, "its first tokens")
    started = time.monotonic()
    httpx.post(f"{server.url}/api/jobs/{item}/cancel", timeout=30)
    wait_until(lambda: job(server, item)["state"] == "cancelled", 30, "the cancellation")
    assert time.monotonic() - started < 20
    assert httpx.get(f"{server.url}/api/jobs/{item}/result", timeout=30).status_code == 409


def test_a_job_that_cannot_run_fails_with_the_reason(server):
    (item,) = submit(server, "x " * 20_000)
    wait_until(lambda: finished(server, [item]), 60, "its end")
    assert job(server, item)["error"]["code"] == "context_length_exceeded"
    assert httpx.get(f"{server.url}/api/jobs/{item}/result", timeout=30).status_code == 400


def test_metrics_name_the_model_and_the_worker(server, client):
    client.completions.create(model="demo", prompt="x", max_tokens=2)
    # The gauges follow the worker's heartbeat; a test before this one may have killed or unloaded something.
    gauges = ('blazr_model_ready{model="demo"} 1.0', "blazr_workers 1.0")

    def text_with_gauges() -> str:
        text = httpx.get(f"{server.url}/metrics", timeout=30).text
        return text if all(gauge in text for gauge in gauges) else ""

    text = wait_until(text_with_gauges, 60, "the gauges of the model and the worker")
    assert 'blazr_requests_total{endpoint="completion",model="demo",outcome="completed"}' in text
