"""Which delivery tags are recorded as a worker's."""

from __future__ import annotations

import time

import pytest
import redis

from inference.transport import keys as redis_keys
from inference.transport.redis_time import redis_now_sync
from inference.worker import lease
from inference.worker.lease import (
    LeaseKeeper,
    hand_back,
    record_tags,
    recorded_tags,
    release_dead_workers,
    release_worker,
)
from tests.inference.worker.fakes import wait_until

WORKER = "lease-test"


@pytest.fixture
def keeper(client):
    # Its thread isn't started: rounds are called here.
    return LeaseKeeper(client, WORKER, on_fenced=lambda: pytest.fail("no worker was declared dead"))


def test_held_tags_are_recorded_until_a_round_finds_them_released(client, keeper):
    keeper.hold("held", "r1")
    keeper.hold("released", "r2")
    keeper.record()
    assert client.hgetall(redis_keys.tags(WORKER)) == {b"held": b"r1", b"released": b"r2"}
    keeper.release(["released"])
    keeper.record()
    assert recorded_tags(client, WORKER) == {"held"}
    keeper.release(["held"])
    keeper.record()
    assert recorded_tags(client, WORKER) == set()


def test_a_new_tag_is_recorded_without_waiting_for_the_next_round(client, keeper):
    keeper.start()
    wait_until(lambda: client.exists(redis_keys.tags(WORKER)) == 0)
    keeper.hold("new", "r")
    wait_until(lambda: recorded_tags(client, WORKER) == {"new"}, 5)
    keeper.stop()


def test_kombu_redelivers_no_held_message_whatever_the_clock_of_a_machine_says(client, keeper):
    client.zadd(redis_keys.UNACKED_INDEX, {"held": time.time()})
    for tag in ("held", "acknowledged"):
        keeper.hold(tag, "r")
    keeper.record()
    far_ahead = time.time() + 10 * 365 * 86400
    assert client.zrangebyscore(redis_keys.UNACKED_INDEX, 0, far_ahead) == []  # what kombu looks for
    assert client.zscore(redis_keys.UNACKED_INDEX, "acknowledged") is None
    hand_back(client, WORKER, ["held"])
    assert client.zrangebyscore(redis_keys.UNACKED_INDEX, 0, 86400) == [b"held"]
    assert recorded_tags(client, WORKER) == {"acknowledged"}


@pytest.mark.parametrize("ahead_s", [-20, 20])
def test_a_peer_whose_clock_is_wrong_declares_no_living_worker_dead(client, monkeypatch, ahead_s):
    clock = time.time
    client.zadd(redis_keys.WORKERS, {WORKER: clock(), "dead": clock() - 16})
    record_tags(client, WORKER, {"held": "r"})
    monkeypatch.setattr(time, "time", lambda: clock() + ahead_s)
    release_dead_workers(client)
    assert client.zrange(redis_keys.WORKERS, 0, -1) == [WORKER.encode()]
    assert recorded_tags(client, WORKER) == {"held"}


def test_a_worker_that_beats_again_is_not_released(client):
    client.zadd(redis_keys.WORKERS, {WORKER: 100.0})
    record_tags(client, WORKER, {"held": "r"})
    assert release_worker(client, WORKER, dead_before=99.0) == -1
    assert recorded_tags(client, WORKER) == {"held"}
    assert not record_tags(client, WORKER, {"held": "r"})


def test_a_worker_that_was_declared_dead_records_nothing_until_its_name_is_used_again(client):
    fenced: list[bool] = []
    keeper = LeaseKeeper(client, WORKER, on_fenced=lambda: fenced.append(True))
    client.zadd(redis_keys.WORKERS, {WORKER: 1.0})
    release_dead_workers(client)
    keeper.hold("late", "r")
    keeper.record()
    assert fenced == [True]
    assert recorded_tags(client, WORKER) == set()


def crashes(client, request_id: str) -> int:
    return int(client.hget(redis_keys.attempt(request_id), "crashes") or 0)


def test_a_crash_counts_against_each_request_that_was_held_once(client):
    client.zadd(redis_keys.UNACKED_INDEX, dict.fromkeys(("t1", "t2", "t3"), 5.0))
    record_tags(client, WORKER, {"t1": "r1", "t2": "r2", "t3": "r2", "acknowledged": "r3"})
    assert release_worker(client, WORKER) == 3
    assert [crashes(client, name) for name in ("r1", "r2", "r3")] == [1, 1, 0]
    assert release_worker(client, WORKER) == 0  # the supervisor and a peer, both
    assert crashes(client, "r1") == 1


def test_while_a_request_runs_alone_a_crash_counts_against_it_only(client):
    client.zadd(redis_keys.UNACKED_INDEX, dict.fromkeys(("t1", "t2"), 5.0))
    for name in ("suspect", "waiting"):
        client.hset(redis_keys.attempt(name), "crashes", 2)
    client.set(redis_keys.alone(WORKER), "suspect")
    record_tags(client, WORKER, {"t1": "suspect", "t2": "held back", "t3": "waiting"})
    release_worker(client, WORKER)
    assert [crashes(client, name) for name in ("suspect", "held back", "waiting")] == [3, 0, 2]
    assert not client.exists(redis_keys.alone(WORKER))


def test_a_suspect_that_waits_to_run_alone_is_not_counted(client):
    """A third count would end the request, although another one has killed the worker."""
    client.zadd(redis_keys.UNACKED_INDEX, dict.fromkeys(("t1", "t2"), 5.0))
    client.hset(redis_keys.attempt("suspect"), "crashes", 2)
    record_tags(client, WORKER, {"t1": "suspect", "t2": "other"})
    release_worker(client, WORKER)
    assert [crashes(client, name) for name in ("suspect", "other")] == [2, 1]


def test_what_waits_for_the_record_of_a_tag_is_called_once_it_is_recorded(client, keeper, monkeypatch):
    found: list[set[str]] = []
    keeper.hold("first", "r1", then=lambda: found.append(recorded_tags(client, WORKER)))
    keeper.hold("second", "r2", then=lambda: 1 / 0)
    keeper.hold("third", "r3", then=lambda: found.append(recorded_tags(client, WORKER)))
    call = client.eval
    monkeypatch.setattr(client, "eval", lambda *args: (_ for _ in ()).throw(redis.ConnectionError("away")))
    with pytest.raises(redis.ConnectionError):
        keeper.record()
    assert found == []
    monkeypatch.setattr(client, "eval", call)
    keeper.record()
    keeper.record()
    assert found == [{"first", "second", "third"}] * 2


def test_after_an_outage_of_redis_its_workers_have_time_to_beat_again(client, monkeypatch):
    """Nobody could send a heartbeat meanwhile: a peer, or the worker itself, isn't dead for that."""
    monkeypatch.setattr(lease, "DEAD_AFTER_S", 1.0)
    monkeypatch.setattr(lease, "RENEW_INTERVAL_S", 0.05)
    fenced: list[bool] = []
    keeper = LeaseKeeper(client, WORKER, on_fenced=lambda: fenced.append(True))
    record, failures = keeper.record, [redis.ConnectionError("away")]

    def fail_first() -> None:
        if failures:
            raise failures.pop()
        record()

    monkeypatch.setattr(keeper, "record", fail_first)
    client.zadd(redis_keys.WORKERS, {WORKER: redis_now_sync(client) - 30, "gone": redis_now_sync(client) - 30})
    keeper.start()
    try:
        wait_until(lambda: not failures)
        time.sleep(0.5)
        assert {name for name, _ in client.zscan_iter(redis_keys.WORKERS)} == {WORKER.encode(), b"gone"}
        client.zadd(redis_keys.WORKERS, {WORKER: redis_now_sync(client) + 30})
        wait_until(lambda: client.zscore(redis_keys.WORKERS, "gone") is None)
    finally:
        keeper.stop()
    assert not fenced and client.zscore(redis_keys.WORKERS, WORKER) is not None
