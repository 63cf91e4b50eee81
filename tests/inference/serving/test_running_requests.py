"""What runs and what waits, from the workers' replies and the queues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import Conflict, Unavailable
from inference.serving import running_requests as module
from inference.serving.running_requests import RunningRequest, merged_requests, request_cancel, unended_requests
from inference.transport import keys as redis_keys
from tests.inference.transport.queued import enqueue, take
from tests.inference.worker.fakes import message


def part(name: str, *, state: str = "running", tokens: int = 1, **values: Any) -> dict[str, Any]:
    return {"id": name, "checkpoint_id": "a", "owner": "key:1", "state": state, "tokens": tokens, "received_at": 1.0,
            "worker_id": "w", **values}  # fmt: skip


def test_the_prompts_of_a_request_are_one_entry() -> None:
    found = merged_requests(
        [part("cmpl-x-1", received_at=3.0), part("cmpl-x-0", state="waiting", received_at=2.0, worker_id="v"),
         part("job-abc", received_at=1.0)]
    )  # fmt: skip
    assert list(found) == ["job-abc", "cmpl-x"]
    whole = found["cmpl-x"]
    assert (whole.state, whole.tokens, whole.received_at) == ("running", 2, 2.0)
    assert (whole.parts, whole.workers) == (("cmpl-x-0", "cmpl-x-1"), ("v", "w"))
    assert "cancel the job instead" in found["job-abc"].cancel_advice and not whole.cancel_advice


async def test_queued_requests_are_listed_with_their_places(redis_urls_in_settings, client, monkeypatch):
    async def held() -> list[dict[str, Any]]:
        return [part("r0"), part("r1", state="waiting")]

    for number in range(3):
        enqueue(client, {**message(f"r{number}"), "owner": "key:1"})
    take(client, "w", max_messages=2)
    monkeypatch.setattr(module, "running_requests", held)
    found = {item.request_id: item for item in await unended_requests()}
    assert set(found) == {"r0", "r1", "r2"}
    assert found["r0"].place is None and found["r2"].received_at is None
    assert found["r2"].place is not None and found["r2"].place.waits_for == "worker"
    assert found["r1"].parts == ("r1",) and found["r2"].owner == "key:1"

    async def none_alive() -> list[dict[str, Any]]:
        raise Unavailable("No worker is running.")

    monkeypatch.setattr(module, "running_requests", none_alive)
    assert {item.state for item in await unended_requests()} == {"waiting"}


async def test_cancelling_tells_the_client_of_a_queued_request_and_the_workers(redis_urls_in_settings, client):
    for name in ("r0", "r1"):
        enqueue(client, message(name))
    take(client, "w", max_messages=1)
    for name in ("r0", "r1", "gone"):
        await request_cancel(RunningRequest(name, "a", "", "waiting", parts=(name,)))
    failures = [redis_keys.unpack(fields[b"f"]) for _, fields in client.xrange(redis_keys.out("web-1"))]
    assert [(name, error["class"]) for name, error in failures] == [("r1", "GenerationCancelled")]
    cancelled = [fields.get(b"cancel") for _, fields in client.xrange(redis_keys.CONTROL_STREAM)]
    assert cancelled == [b"r0", b"r1", b"gone"]
    with pytest.raises(Conflict, match="cancel the batch instead"):
        await request_cancel(RunningRequest("batch_req_1", "a", "", "running"))
    assert json.loads(client.hget(redis_keys.MESSAGES, "r0"))["request_id"] == "r0"
