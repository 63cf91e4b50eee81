"""What pages show of the workers: their states, or that they could not be asked."""

from __future__ import annotations

import time

import pytest

from inference.errors import ModelLoadFailed, Unavailable
from inference.values.states import (
    Departure,
    EnergyReading,
    ModelState,
    ResidentAdapter,
    ResidentModel,
    WorkerState,
)
from models_registry import live
from models_registry.live import Live
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def checkpoint():
    return make_checkpoint("tiny")


def worker(worker_id: str, *checkpoint_ids: str, departures: tuple[Departure, ...] = ()) -> WorkerState:
    return WorkerState(
        worker_id, device="cpu", heartbeat_at=time.time() - 2, memory_used_bytes=5, memory_budget_bytes=10,
        models=tuple(ResidentModel(item, "ready") for item in checkpoint_ids), departures=departures,
    )  # fmt: skip


def test_a_model_that_no_worker_mentions_is_unloaded(checkpoint):
    found = Live({}, ()).of(checkpoint)
    assert (found["status"], found["workers"], found["error"], found["departures"]) == ("unloaded", [], "", [])


def test_a_models_state_has_its_error_and_its_departures(checkpoint):
    key = str(checkpoint.pk)
    gone = Departure(key, "it was asked to go", 7, 1.5, 1000.0)
    other = Departure("other", "it was asked to go", 7, 1.5, 1000.0)
    state = ModelState(key, "failed", error=ModelLoadFailed("too large.").to_dict())
    found = Live({key: state}, (worker("w1", departures=(gone, other)),)).of(checkpoint)
    assert (found["status"], found["error"]) == ("failed", "too large.")
    assert found["departures"] == [
        {"worker_id": "w1", "reason": "it was asked to go", "memory_bytes": 7, "resident_s": 1.5, "at": 1000.0}
    ]


def test_workers_that_could_not_be_asked_leave_the_status_unknown(checkpoint):
    found = Live({str(checkpoint.pk): ModelState(str(checkpoint.pk), "ready")}, (), "Redis is away.").of(checkpoint)
    assert found["status"] == "unknown"


def test_the_power_of_devices_is_shown_without_the_names_of_hosts():
    reading = EnergyReading("boot/0", "box/package-0", "rapl", watts=41.26, hour_watts=38.04)
    workers = WorkerState("w1", energy=(reading,)), WorkerState("w2", energy_notice="no counter")
    row, other = Live({}, workers).worker_rows([])
    assert row["energy"] == [{"device": "package-0", "counter": "rapl", "watts": 41.3, "hour_watts": 38.0}]
    assert (other["energy"], other["energy_notice"]) == ([], "no counter")


def test_workers_are_shown_with_the_served_names_of_their_models(checkpoint):
    seen = Live({}, (worker("w1", str(checkpoint.pk), "deleted"),))
    (row,) = seen.worker_rows([checkpoint])
    assert row["models"] == ["tiny", "deleted"]
    assert 2 <= row["heartbeat_age_s"] < 60
    assert (row["memory_used_bytes"], row["memory_budget_bytes"]) == (5, 10)
    assert row["is_late"] is False
    assert (row["started_at"], row["states_bytes"], row["states_used_bytes"], row["states_cached_bytes"]) == (
        0.0,
        0,
        0,
        0,
    )
    assert (row["energy"], row["energy_notice"]) == ([], "")
    late = WorkerState("w3", is_late=True)
    assert Live({}, (late,)).worker_rows([])[0]["is_late"] is True
    future = WorkerState("w2", heartbeat_at=time.time() + 60)
    assert Live({}, (future,)).worker_rows([])[0]["heartbeat_age_s"] == 0.0


def test_without_redis_pages_have_a_notice_and_orders_an_error(checkpoint):
    seen = live.look()
    assert (seen.models, seen.workers) == ({}, ())
    assert "can't be reached" in seen.notice
    (row,) = live.with_live([checkpoint], seen)
    assert row.live["status"] == "unknown"
    for order in (live.load, live.unload, live.fit):
        with pytest.raises(Unavailable):
            order(checkpoint)
    live.unload_before_delete(checkpoint)  # a checkpoint can be deleted all the same


def test_orders_reach_the_workers(checkpoint, redis_urls_in_settings):
    import redis

    from inference.transport import keys as redis_keys

    client = redis.Redis.from_url(redis_urls_in_settings.client)
    live.unload(checkpoint)
    ((_, order),) = client.xrevrange(redis_keys.CONTROL_STREAM, count=1)
    assert order == {b"unload": str(checkpoint.pk).encode()}
    live.load(checkpoint)
    assert client.llen(redis_keys.DEFAULT_QUEUE) == 1
    client.delete(redis_keys.DEFAULT_QUEUE, redis_keys.CONTROL_STREAM)
    client.close()


def test_adapters_in_memory_are_known_by_their_ids():
    states = {"a": ModelState("a", adapters=(ResidentAdapter("k", 5),)), "b": ModelState("b")}
    assert Live(states, ()).adapters() == {"k": ResidentAdapter("k", 5)}
    assert Live({}, ()).adapters() == {}
    assert Live({}, (), "Redis is away.").adapters() is None


@pytest.mark.parametrize("order", [live.load_adapter, live.unload_adapter])
def test_orders_for_adapters_sum_what_the_workers_reply(monkeypatch, order):
    sent = []

    async def replied(*arguments):
        sent.append(arguments)
        return [ResidentAdapter("k", 5), ResidentAdapter("k", 5)] if len(sent) == 1 else []

    monkeypatch.setattr(live, "adapter_order", replied)
    assert order("c", "k") == ResidentAdapter("k", 10, num_workers=2)
    assert order("c", "k") is None
    kind = "load-adapter" if order is live.load_adapter else "unload-adapter"
    assert sent == [(kind, "c", "k")] * 2
