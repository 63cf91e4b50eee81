"""The heartbeat: the worker's state in Redis, and the requests of web processes that are gone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis

from inference.transport import keys as redis_keys
from inference.transport.redis_time import redis_now_sync
from inference.values.states import ResidentModel, WorkerState
from inference.worker import heartbeat as module
from inference.worker.heartbeat import Heartbeat
from tests.inference.standing_clock import StandingClock
from tests.inference.worker.fakes import wait_until

WORKER = "heartbeat-test"


class Beats:
    """A heartbeat and what it asks its worker."""

    def __init__(self, client: redis.Redis) -> None:
        self.web_ids: list[str] = []
        self.lost: list[str] = []
        self.fenced: list[bool] = []
        self.num_ticks = 0
        self.num_described = 0
        self.num_failures = 0
        self.is_away = False
        self.broken = False
        self.heartbeat = Heartbeat(
            client,
            WORKER,
            describe=self.describe,
            web_ids=lambda: self.web_ids,
            on_web_lost=self.lost.append,
            tick=self.tick,
            on_fenced=lambda: self.fenced.append(True),
        )

    def tick(self) -> None:
        self.num_ticks += 1
        if self.is_away:
            self.num_failures += 1
            raise redis.ConnectionError("away")
        if self.broken:
            raise RuntimeError("broken")

    def describe(self) -> WorkerState:
        self.num_described += 1
        return WorkerState(
            worker_id=WORKER, pid=1, host="here", device="cpu", started_at=0.0, heartbeat_at=time.time(),
            memory_budget_bytes=10, memory_used_bytes=5, num_active=self.num_described, max_active=4,
            models=(ResidentModel("held", "ready"), ResidentModel("leaving", "ready")),
        )  # fmt: skip


@pytest.fixture
def beats(client: redis.Redis) -> Any:
    client.zadd(redis_keys.holders("held"), {WORKER: 1.0})
    made = Beats(client)
    yield made
    made.heartbeat.stop() if made.heartbeat._thread.is_alive() else None
    client.delete(redis_keys.worker(WORKER), redis_keys.holders("held"), redis_keys.web("alive"))
    client.zrem(redis_keys.WORKERS, WORKER)


def test_one_that_never_began_is_stopped(beats, client):
    """A worker that gets its signal while it starts stops it, too."""
    client.zadd(redis_keys.WORKERS, {WORKER: 1.0})
    beats.heartbeat.stop()
    assert client.zscore(redis_keys.WORKERS, WORKER) is None


def test_a_beat_writes_the_state_and_renews_holders_only(beats, client):
    begun = time.time()
    beats.heartbeat._beat()
    assert json.loads(client.get(redis_keys.worker(WORKER)))["memory_used_bytes"] == 5
    assert 0 < client.ttl(redis_keys.worker(WORKER)) <= redis_keys.HEARTBEAT_EXPIRE_S
    assert client.zscore(redis_keys.WORKERS, WORKER) > begun - 1
    assert client.zscore(redis_keys.holders("held"), WORKER) > begun + 1
    assert client.zscore(redis_keys.holders("leaving"), WORKER) is None


def test_a_beat_is_by_the_time_of_redis(beats, client, monkeypatch):
    clock, begun = time.time, time.time()
    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
    beats.heartbeat._beat()
    assert client.zscore(redis_keys.WORKERS, WORKER) > begun - 1
    assert client.zscore(redis_keys.holders("held"), WORKER) > begun + 1


def test_a_change_is_written_at_once_and_the_end_removes_the_state(beats, client, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_S", 3600.0)
    beats.heartbeat.start()
    wait_until(lambda: beats.num_described == 1)
    beats.heartbeat.wake()
    wait_until(lambda: beats.num_described >= 2)
    wait_until(lambda: json.loads(client.get(redis_keys.worker(WORKER)))["num_active"] >= 2)
    beats.heartbeat.stop()
    assert not client.exists(redis_keys.worker(WORKER))
    assert client.zscore(redis_keys.WORKERS, WORKER) is None


def test_an_error_of_the_worker_does_not_end_the_heartbeat(beats, client, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_S", module.MIN_GAP_S)
    beats.broken = True
    beats.heartbeat.start()
    wait_until(lambda: beats.num_ticks >= 2)
    assert beats.num_described == 0
    beats.broken = False
    wait_until(lambda: client.exists(redis_keys.worker(WORKER)))


def test_a_web_process_is_lost_when_it_is_missing_twice_in_a_row(beats, client):
    client.set(redis_keys.web("alive"), "1")
    beats.web_ids = ["alive", "gone", "gone"]
    beats.heartbeat._check_web_processes()
    assert beats.lost == []
    beats.heartbeat._check_web_processes()
    assert beats.lost == ["gone"]
    beats.web_ids = ["alive"]
    client.delete(redis_keys.web("alive"))
    beats.heartbeat._check_web_processes()
    client.set(redis_keys.web("alive"), "1")
    beats.heartbeat._check_web_processes()
    client.delete(redis_keys.web("alive"))
    beats.heartbeat._check_web_processes()
    assert beats.lost == ["gone"]


def test_a_worker_that_was_declared_dead_beats_no_more(beats, client):
    client.set(redis_keys.fenced(WORKER), "1", ex=60)
    beats.heartbeat.start()
    beats.heartbeat._thread.join(60)
    assert (beats.fenced, beats.num_ticks) == ([True], 0)
    assert client.zscore(redis_keys.WORKERS, WORKER) is None


@pytest.fixture
def clock(monkeypatch):
    found = StandingClock()
    monkeypatch.setattr(module, "time", found)
    monkeypatch.setattr(module, "INTERVAL_S", module.MIN_GAP_S)
    return found


def workers(client) -> set[bytes]:
    return {name for name, _ in client.zscan_iter(redis_keys.WORKERS)}


@pytest.mark.parametrize("was_away", [True, False], ids=["Redis was away", "the machine stood still"])
def test_after_an_outage_others_have_time_to_beat_again(beats, client, clock, was_away):
    """Nobody could send a heartbeat meanwhile: neither a worker nor a web process is dead for that."""
    beats.heartbeat.start()
    wait_until(lambda: beats.num_ticks > 1)
    beats.is_away = was_away
    wait_until(lambda: not was_away or beats.num_failures > 1)
    clock.now += 30
    old = redis_now_sync(client) - 30
    client.zadd(redis_keys.WORKERS, {"alive": old, "gone": old})
    beats.web_ids = ["alive", "gone"]
    beats.is_away = False

    def take_turns(seconds: float) -> None:
        before = beats.num_ticks
        clock.now += seconds
        wait_until(lambda: beats.num_ticks > before + 2)

    for seconds in (0, 4, 4):  # two checks of web processes, if nobody was spared
        take_turns(seconds)
    assert workers(client) == {b"alive", b"gone", WORKER.encode()}
    assert beats.lost == []
    client.zadd(redis_keys.WORKERS, {"alive": redis_now_sync(client) + 600})
    client.set(redis_keys.web("alive"), "1")
    for _ in range(3):
        take_turns(4)
    assert workers(client) == {b"alive", WORKER.encode()}
    assert beats.lost == ["gone"]
    assert not beats.fenced


@pytest.mark.parametrize("every", [1, 2], ids=["always", "every second time"])
def test_a_worker_whose_turns_are_slow_finds_dead_ones_too(beats, client, clock, every):
    tick = beats.heartbeat._tick

    def slow_tick() -> None:
        clock.now += module.DEAD_AFTER_S if beats.num_ticks % every == 0 else 1
        tick()

    beats.heartbeat._tick = slow_tick
    client.zadd(redis_keys.WORKERS, {"gone": redis_now_sync(client) - 30})
    beats.heartbeat.start()
    wait_until(lambda: workers(client) == {WORKER.encode()})
