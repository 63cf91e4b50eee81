"""Redelivered requests: each waits for its own web process only, and each gets an outcome."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.client import Pipeline
from redis.exceptions import ConnectionError

from inference.errors import GenerationFailed, Unavailable
from inference.transport import keys as redis_keys
from inference.transport.crash_record import MAX_DELIVERIES, tokens_alone
from inference.worker import resume
from inference.worker.resume import Resumer, Resumption
from tests.inference.transport.collected import Collected
from tests.inference.worker.fakes import message, wait_until


class Outcomes:
    def __init__(self, client) -> None:
        self.found: dict[str, Resumption] = {}
        self.resumer = Resumer(client)
        self.resumer.start()

    def resume(self, request_id: str, **members: object) -> None:
        self.resumer.resume(message(request_id, **members), lambda found: self.found.update({request_id: found}))

    async def of(self, request_id: str, timeout_s: float = 60) -> Resumption:
        await asyncio.to_thread(wait_until, lambda: request_id in self.found, timeout_s)
        return self.found[request_id]


@pytest.fixture
def outcomes(client):
    made = Outcomes(client)
    yield made
    made.resumer.stop()


async def test_requests_of_dead_web_processes_hold_up_nobody(hub, outcomes, client, monkeypatch):
    monkeypatch.setattr(resume, "QUERY_AGAIN_S", 60.0)
    for number in range(20):
        outcomes.resume(f"dead-{number}", web_id=f"dead-{number % 7}")
    for number in range(20):
        Collected(hub, f"r{number}")
        outcomes.resume(f"r{number}")
    started = time.monotonic()
    for number in range(20):
        assert (await outcomes.of(f"r{number}")).delivered == []
    assert time.monotonic() - started < resume.QUERY_AGAIN_S / 2
    assert set(outcomes.found) == {f"r{number}" for number in range(20)}


async def test_nobody_waits_for_a_request_of_a_dead_web_process(outcomes, client, monkeypatch):
    monkeypatch.setattr(resume, "QUERY_AGAIN_S", 0.1)
    outcomes.resume("r", web_id="dead")
    assert (await outcomes.of("r")).delivered is None
    assert not client.exists(redis_keys.out("dead"))


async def test_an_outage_at_the_last_request_ends_too(outcomes, client, monkeypatch, caplog):
    monkeypatch.setattr(resume, "QUERY_AGAIN_S", 0.1)
    execute, cut = Pipeline.execute, []

    def execute_but_once(pipe, *arguments, **options):
        if not cut and any(command[0][0] == "DEL" for command in pipe.command_stack):
            cut.append(True)
            raise ConnectionError("cut")
        return execute(pipe, *arguments, **options)

    monkeypatch.setattr(Pipeline, "execute", execute_but_once)
    outcomes.resume("r", web_id="dead")
    assert (await outcomes.of("r")).delivered is None
    await asyncio.to_thread(wait_until, lambda: "is reached again" in caplog.text)


async def test_a_web_process_that_replies_late_or_loses_a_reply_is_asked_again(outcomes, client, monkeypatch):
    monkeypatch.setattr(resume, "QUERY_AGAIN_S", 0.1)
    client.set(redis_keys.web("web-1"), "1")
    outcomes.resume("r")
    await asyncio.to_thread(wait_until, lambda: client.xlen(redis_keys.out("web-1")) >= 3)
    attempts = [redis_keys.unpack(fields[b"q"])[1] for _, fields in client.xrange(redis_keys.out("web-1"))]
    assert attempts == sorted(set(attempts))  # a hub ignores a question that it has answered
    assert not outcomes.found
    client.set(redis_keys.web("web-1"), "1")
    for attempt in range(attempts[-1], attempts[-1] + 600):
        client.lpush(redis_keys.resume("r", attempt), redis_keys.pack([[1, 2]]))
    assert (await outcomes.of("r")).delivered == [[1, 2]]


async def test_a_request_whose_web_process_never_replies_ends_at_its_deadline(outcomes, client):
    client.set(redis_keys.web("web-1"), "1")
    outcomes.resume("r", deadline=time.time() + 0.2)
    assert isinstance((await outcomes.of("r")).error, Unavailable)


async def test_the_rule_of_crashes_is_applied(hub, outcomes, client):
    counts = {"once": 1, "twice": 2, "thrice": 3}
    for name, crashes in counts.items():
        Collected(hub, name)
        client.hset(redis_keys.attempt(name), mapping={"crashes": crashes, "seen": crashes - 1, "reach": 7})
        outcomes.resume(name)
    found = {name: await outcomes.of(name) for name in counts}
    assert [found[name].alone_tokens for name in ("once", "twice")] == [None, tokens_alone(7)]
    assert isinstance(found["thrice"].error, GenerationFailed)
    assert "3 workers were lost" in found["thrice"].error.message
    assert client.hget(redis_keys.attempt("twice"), "seen") == b"2"


async def test_deliveries_are_limited(hub, outcomes, client):
    Collected(hub, "r")
    client.hset(redis_keys.attempt("r"), "n", MAX_DELIVERIES)
    outcomes.resume("r")
    assert f"{MAX_DELIVERIES + 1} times" in (await outcomes.of("r")).error.message
