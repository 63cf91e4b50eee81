"""Which requests wait, in the order in which workers take them."""

from __future__ import annotations

import time

from inference.transport import keys as redis_keys
from inference.transport.queue_places import read_queues
from inference.values.queue_place import StartOutlook
from inference.values.states import ResidentModel, WorkerState
from tests.inference.transport.queued import enqueue, take
from tests.inference.worker.fakes import message


async def test_queues_are_read_in_the_order_of_taking_with_what_the_workers_expect(client):
    for number in range(18):  # the caller's last ones are deferred
        enqueue(client, {**message(f"r{number}"), "owner": "key:1"})
    enqueue(client, {**message("returned"), "owner": "key:1"}, is_again=True)
    outlook = StartOutlook(("w1",), 1, 0, (2.0,), 4.0)
    begun = time.time()
    worker = WorkerState("w", heartbeat_at=time.time(), models=(ResidentModel("a", "ready", outlook=outlook),))
    client.zadd(redis_keys.WORKERS, {"w": time.time() + 600})
    client.set(redis_keys.worker("w"), worker.to_json())
    found = await read_queues(["a", "b"])
    assert found.queued_ids == {"a": ["returned", *(f"r{number}" for number in range(18))], "b": []}
    place = found.place_of("r0", "a")
    assert (place.position, place.waits_for) == (3, "capacity")
    assert place.estimated_s is not None
    assert 9.9 - (time.time() - begun) < place.estimated_s <= 10.0  # which passes
    assert found.place_of("w1", "a").position == 1
    assert [item.request_id for item in take(client, "w")] == found.queued_ids["a"][:16]
    after = await read_queues(["a"])
    assert after.num_taken == {"a": 16} and after.place_of("r15", "a").position == 16 - 1 + 1


async def test_a_request_of_a_model_that_is_being_unloaded_waits_for_its_next_load(client):
    outlook = StartOutlook(("w1",), load_left_s=9.0)
    begun = time.time()
    model = ResidentModel("a", "ready", progress=1.0, stage="unloading", outlook=outlook)
    worker = WorkerState("w", heartbeat_at=time.time(), models=(model,))
    client.zadd(redis_keys.WORKERS, {"w": time.time() + 600})
    client.set(redis_keys.worker("w"), worker.to_json())
    place = (await read_queues(["a"])).place_of("w1", "a")
    assert place.waits_for == "load" and 8.9 - (time.time() - begun) < place.load_left_s <= 9.0


async def test_without_a_worker_a_request_waits_for_one(client):
    enqueue(client, message("r1"))
    assert (await read_queues(["a"])).place_of("r1", "a").waits_for == "worker"
