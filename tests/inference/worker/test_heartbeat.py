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
        if self.num_ticks <= self.num_failures:
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


def test_a_beat_writes_the_state_and_renews_holders_only(beats, client):
    beats.heartbeat._beat()
    assert json.loads(client.get(redis_keys.worker(WORKER)))["memory_used_bytes"] == 5
    assert 0 < client.ttl(redis_keys.worker(WORKER)) <= redis_keys.HEARTBEAT_EXPIRE_S
    assert client.zscore(redis_keys.WORKERS, WORKER) > time.time() - 5
    assert client.zscore(redis_keys.holders("held"), WORKER) > time.time()
    assert client.zscore(redis_keys.holders("leaving"), WORKER) is None


def test_a_beat_is_by_the_time_of_redis(beats, client, monkeypatch):
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
    beats.heartbeat._beat()
    assert client.zscore(redis_keys.WORKERS, WORKER) > clock() - 5
    assert client.zscore(redis_keys.holders("held"), WORKER) > clock()


def test_a_change_is_written_at_once_and_the_end_removes_the_state(beats, client, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_S", 30.0)
    beats.heartbeat.start()
    wait_until(lambda: beats.num_described == 1)
    beats.heartbeat.wake()
    wait_until(lambda: beats.num_described >= 2, 5)
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
    beats.heartbeat._thread.join(5)
    assert (beats.fenced, beats.num_ticks) == ([True], 0)
    assert client.zscore(redis_keys.WORKERS, WORKER) is None


def test_after_an_outage_of_redis_its_workers_have_time_to_beat_again(beats, client, monkeypatch):
    """Nobody could send a heartbeat meanwhile: a peer isn't dead for that."""
    monkeypatch.setattr(module, "DEAD_AFTER_S", 1.0)
    monkeypatch.setattr(module, "INTERVAL_S", 0.1)
    monkeypatch.setattr(module, "PEER_CHECK_INTERVAL_S", 0.05)
    beats.num_failures = 1
    old = redis_now_sync(client) - 30
    client.zadd(redis_keys.WORKERS, {"alive": old, "gone": old})
    beats.heartbeat.start()
    wait_until(lambda: beats.num_ticks > 3)
    assert {name for name, _ in client.zscan_iter(redis_keys.WORKERS)} == {b"alive", b"gone", WORKER.encode()}
    client.zadd(redis_keys.WORKERS, {"alive": redis_now_sync(client) + 30})
    wait_until(lambda: client.zscore(redis_keys.WORKERS, "gone") is None)
    assert client.zscore(redis_keys.WORKERS, "alive") is not None
    assert not beats.fenced
