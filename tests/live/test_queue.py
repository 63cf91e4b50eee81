"""Waiting requests say where they stand: on a server that computes one request at a time, with the openai package."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from inference.transport import keys as redis_keys
from tests.live.conftest import LiveServer, wait_until

pytestmark = pytest.mark.live
MESSAGES: Any = [{"role": "user", "content": "What is a list?"}]
LONG: dict[str, Any] = {
    "model": "demo", "messages": MESSAGES, "max_tokens": 400, "temperature": 0, "extra_body": {"ignore_eos": True},
}  # fmt: skip
NUM_AHEAD = 8
"""More than the engine holds."""


async def behind_others(server: LiveServer, task: Any) -> Any:
    """Run ``task(client)`` while ``NUM_AHEAD`` long requests are open."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        ahead = [asyncio.create_task(client.chat.completions.create(**LONG)) for _ in range(NUM_AHEAD)]
        while server.client.zcard(redis_keys.OPEN_REQUESTS) + sum(task.done() for task in ahead) < NUM_AHEAD:
            await asyncio.sleep(0.02)
        found = await task(client)
        await asyncio.gather(*ahead)
        return found


async def streamed(client: openai.AsyncOpenAI) -> list[Any]:
    stream = await client.chat.completions.create(
        **{**LONG, "max_tokens": 4}, stream=True,
        stream_options={"include_usage": True, "include_queue": True},  # type: ignore[typeddict-unknown-key]
    )  # fmt: skip
    return [chunk async for chunk in stream]


def test_a_waiting_stream_begins_with_events_about_the_queue(plain_server: LiveServer) -> None:
    chunks = asyncio.run(behind_others(plain_server, streamed))
    places = [chunk.queue for chunk in chunks if hasattr(chunk, "queue")]
    first = next(number for number, chunk in enumerate(chunks) if chunk.choices)
    assert places and all(hasattr(chunk, "queue") for chunk in chunks[:first])
    assert all(place["waits_for"] == "capacity" for place in places), places
    positions = [place["position"] for place in places]
    assert positions[0] > 2 and positions[0] > positions[-1] >= 1
    assert any(place["estimated_s"] for place in places)
    assert chunks[-1].usage.completion_tokens == 4
    assert not any(hasattr(chunk, "queue") for chunk in chunks[first:])


def test_a_whole_response_says_how_long_it_waited(plain_server: LiveServer) -> None:
    async def whole(client: openai.AsyncOpenAI) -> Any:
        return await client.chat.completions.with_raw_response.create(**{**LONG, "max_tokens": 4})

    headers = asyncio.run(behind_others(plain_server, whole)).headers
    assert float(headers["x-queue-seconds"]) > 0.1 and headers["x-queue-reason"] == "capacity"


def test_a_request_that_starts_at_once_says_nothing_of_the_queue(plain_server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{plain_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        short: Any = {**LONG, "max_tokens": 2}
        options: Any = {"include_queue": True}

        def says_nothing_streamed() -> bool:
            chunks = client.chat.completions.create(**short, stream=True, stream_options=options)
            return not any(hasattr(chunk, "queue") for chunk in chunks)

        def says_nothing_whole() -> bool:
            return "x-queue-seconds" not in client.chat.completions.with_raw_response.create(**short).headers

        # Where other work has the processors, one of several starts at once.
        wait_until(says_nothing_streamed, 60, "a stream that says nothing of the queue")
        wait_until(says_nothing_whole, 60, "a response that says nothing of the queue")


def test_a_load_is_waited_for_and_its_phase_is_in_the_log(plain_server: LiveServer) -> None:
    headers = plain_server.admin_headers
    httpx.post(f"{plain_server.url}/v1/models/demo/unload", headers=headers, timeout=30).raise_for_status()
    wait_until(lambda: not plain_server.model().workers, 60, "the unload")
    with openai.OpenAI(base_url=f"{plain_server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        raw = client.chat.completions.with_raw_response.create(**{**LONG, "max_tokens": 4})
    assert raw.headers["x-queue-reason"] == "load"
    request_id = raw.headers["x-request-id"]
    read = f"from inference.models import UsageRecord; print(*UsageRecord.objects.filter(request_id='{request_id}')"
    phases = wait_until(
        lambda: plain_server.manage(read + ".values_list('phases', flat=True))").strip(), 60, "the record"
    )
    for name in ("load", "prepare", "prefill", "decode"):
        assert f'"{name}"' in phases, phases
