"""Messages that workers take, several in one step, and that return when their workers are gone."""

from __future__ import annotations

import time

import pytest

from inference.transport import held_messages as module
from inference.transport import keys as redis_keys
from inference.transport.held_messages import (
    Taken,
    held_messages,
    release_dead_workers,
    release_worker,
    return_messages,
    take_messages,
    wait_for_messages,
    wake_others,
    wake_worker,
)
from inference.transport.open_requests import DEFERRED_FROM, release_messages
from tests.inference.transport.queued import enqueue, queued_ids, take
from tests.inference.worker.fakes import message

WORKER = "w1"
RETURNED, FIRST, DEFERRED = redis_keys.model_queues("a")


def queue(client, *names, **members):
    for name in names:
        enqueue(client, message(name, **members))


def taken_ids(client, *args, **limits):
    return [item.request_id for item in take(client, *args, **limits)]


def crashes(client, request_id: str) -> int:
    return int(client.hget(redis_keys.attempt(request_id), "crashes") or 0)


# --- taking


def test_several_messages_are_taken_and_recorded_in_one_round_trip(client):
    queue(client, "r1", "r2", "r3")
    client.config_resetstat()
    found = take(client, WORKER)
    assert client.info("commandstats")["cmdstat_eval"]["calls"] == 1
    assert [(item.request_id, item.had_before) for item in found] == [(name, False) for name in ("r1", "r2", "r3")]
    assert found[0].body == client.hget(redis_keys.MESSAGES, "r1")
    assert held_messages(client, WORKER) == {"r1", "r2", "r3"}
    assert not client.exists(RETURNED, FIRST, DEFERRED)
    assert client.zscore(redis_keys.WORKERS, WORKER) is not None  # its peers look for its messages from now on


def test_returned_messages_come_first_and_deferred_ones_last(client):
    for number in range(DEFERRED_FROM + 1):
        enqueue(client, message(f"r{number}", owner="flood"))
    queue(client, "other")
    enqueue(client, message("returned"), is_again=True)
    found = take(client, WORKER)
    assert [item.had_before for item in found] == [True] + [False] * (module.MAX_MESSAGES - 1)
    assert [item.request_id for item in found[:2]] == ["returned", "r0"]
    assert taken_ids(client, WORKER) == ["r15", "other", "r16"]


def test_only_messages_of_the_named_models_are_taken(client):
    queue(client, "a1", "a2")
    queue(client, "b1", model="b")
    assert taken_ids(client, WORKER, "b") == ["b1"]
    assert queued_ids(client, FIRST) == ["a1", "a2"]


def test_a_call_takes_no_more_messages_and_hardly_more_bytes_than_its_limits(client, monkeypatch):
    queue(client, *(f"r{number}" for number in range(5)))
    assert len(take(client, WORKER, max_messages=2)) == 2
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    assert len(take(client, WORKER)) == 1


def test_each_holder_takes_its_share_and_another_one_is_woken_for_the_rest(client):
    queue(client, *(f"r{number}" for number in range(8)))
    client.zadd(redis_keys.holders("a"), {name: time.time() + 60 for name in ("w1", "w2")})
    assert wait_for_messages(client, "w1", ["a"], 1) == "a"
    assert len(take(client, "w1")) == 4
    assert wait_for_messages(client, "w2", ["a"], 1) == "a"
    assert len(take(client, "w2")) == 2
    while queued_ids(client, FIRST):
        assert take(client, "w2")
    assert wait_for_messages(client, "w1", ["a"], 0.05) is None


def test_a_worker_waits_for_its_models_until_it_is_woken(client):
    begun = time.monotonic()
    queue(client, "b1", model="b")
    assert wait_for_messages(client, WORKER, ["a"], 0.2) is None
    assert time.monotonic() - begun > 0.15
    wake_worker(client, WORKER)
    assert wait_for_messages(client, WORKER, [], 120) is None
    wake_others(client, "a")
    assert wait_for_messages(client, "w2", ["b", "a"], 120) in ("a", "b")
    assert time.monotonic() - begun < 60


def test_what_an_earlier_version_has_queued_is_counted_and_removed(client):
    client.rpush(FIRST, b'{"body": "...", "headers": {"id": "old"}}')
    queue(client, "new")
    found = take_messages(client, WORKER, ["a"])
    assert isinstance(found, Taken)
    assert ([item.request_id for item in found.messages], found.unknown) == (["new"], 1)
    assert not client.exists(FIRST)


def test_an_id_that_is_queued_twice_is_taken_once(client):
    queue(client, "r1", "r2")
    client.lpush(FIRST, "r1", "r1")
    assert taken_ids(client, WORKER, max_messages=1) == ["r1"]
    client.lpush(RETURNED, "r1")
    assert taken_ids(client, "w2") == ["r2"]
    assert (held_messages(client, WORKER), held_messages(client, "w2")) == ({"r1"}, {"r2"})


# --- returning


def test_messages_that_are_handed_back_return_in_one_step_without_suspicion(client):
    queue(client, "r1", "r2", "r3")
    take(client, WORKER)
    return_messages(client, WORKER, ["r1", "r2", "of another"])
    return_messages(client, WORKER, [])
    assert (queued_ids(client, RETURNED), held_messages(client, WORKER)) == (["r1", "r2"], {"r3"})
    assert wait_for_messages(client, "w2", ["a"], 1) == "a"
    assert [(item.request_id, item.had_before) for item in take(client, "w2")] == [("r1", True), ("r2", True)]
    assert crashes(client, "r1") == 0


@pytest.mark.parametrize("ahead_s", [-200, 200])
def test_a_peer_whose_clock_is_wrong_declares_no_living_worker_dead(client, monkeypatch, ahead_s):
    monkeypatch.setattr(module, "DEAD_AFTER_S", 100.0)
    clock = time.time
    queue(client, "held")
    take(client, WORKER)
    client.zadd(redis_keys.WORKERS, {WORKER: clock(), "dead": clock() - 160})
    monkeypatch.setattr(time, "time", lambda: clock() + ahead_s)
    release_dead_workers(client)
    assert client.zrange(redis_keys.WORKERS, 0, -1) == [WORKER.encode()]
    assert held_messages(client, WORKER) == {"held"}


def test_a_worker_that_beats_again_is_not_released(client):
    queue(client, "held", "next")
    take(client, WORKER, max_messages=1)
    client.zadd(redis_keys.WORKERS, {WORKER: 100.0})
    assert release_worker(client, WORKER, dead_before=99.0) == -1
    assert taken_ids(client, WORKER) == ["next"]
    assert held_messages(client, WORKER) == {"held", "next"}


def test_a_worker_that_was_declared_dead_takes_nothing_until_its_name_is_used_again(client):
    queue(client, "r")
    client.zadd(redis_keys.WORKERS, {WORKER: 1.0})
    release_dead_workers(client)
    assert take_messages(client, WORKER, ["a"]) is None
    assert (queued_ids(client, FIRST), held_messages(client, WORKER)) == (["r"], set())
    client.delete(redis_keys.fenced(WORKER))
    assert taken_ids(client, WORKER) == ["r"]


def test_a_worker_that_died_right_after_its_first_take_is_found(client, monkeypatch):
    """It had no time for a heartbeat."""
    queue(client, "r")
    take(client, WORKER)
    monkeypatch.setattr(module, "DEAD_AFTER_S", -1.0)
    release_dead_workers(client)
    assert taken_ids(client, "w2") == ["r"]


def test_a_crash_counts_once_against_each_request_that_was_held(client):
    queue(client, "r1", "r2", "r3")
    take(client, WORKER)
    with client.pipeline() as pipe:
        release_messages(pipe, WORKER, ["r3"])
        pipe.execute()
    assert release_worker(client, WORKER) == 2
    assert [crashes(client, name) for name in ("r1", "r2", "r3")] == [1, 1, 0]
    assert release_worker(client, WORKER) == 0  # the supervisor and a peer, both
    assert crashes(client, "r1") == 1


def test_while_a_request_runs_alone_a_crash_counts_against_it_only(client):
    for name in ("suspect", "waiting"):
        client.hset(redis_keys.attempt(name), "crashes", 2)
    client.set(redis_keys.alone(WORKER), "suspect")
    queue(client, "suspect", "held back", "waiting")
    take(client, WORKER)
    release_worker(client, WORKER)
    assert [crashes(client, name) for name in ("suspect", "held back", "waiting")] == [3, 0, 2]
    assert not client.exists(redis_keys.alone(WORKER))


def test_a_suspect_that_waits_to_run_alone_is_not_counted(client):
    """A third count would end the request, although another one has killed the worker."""
    client.hset(redis_keys.attempt("suspect"), "crashes", 2)
    queue(client, "suspect", "other")
    take(client, WORKER)
    release_worker(client, WORKER)
    assert [crashes(client, name) for name in ("suspect", "other")] == [2, 1]
