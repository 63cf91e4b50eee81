"""Read the models' queues: which requests wait, in which order, and what the workers expect."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inference.transport import keys as redis_keys
from inference.transport.clients import redis_client_sync, redis_repeatable
from inference.transport.worker_states import worker_states
from inference.values.queue_place import HeldModel, QueuePlace, QueuePlaces
from inference.values.states import ResidentModel, WorkerState

MAX_OPEN = 200
"""Most open requests that are listed."""


class OpenRequest(NamedTuple):
    """A request that is queued, or that a worker has taken; ``caller``: the tenant."""

    request_id: str
    checkpoint_id: str
    caller: str


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of some models at one moment.

    Attributes:
        workers: The live workers.
        queued_ids: Requests that no worker has taken, in the order of taking, by checkpoint id.
        num_taken: Numbers of open requests that workers have taken, by checkpoint id.
    """

    workers: tuple[WorkerState, ...]
    queued_ids: dict[str, list[str]]
    num_taken: dict[str, int] = field(default_factory=dict)
    _places: dict[str, QueuePlaces] = field(default_factory=dict, init=False, repr=False, compare=False)

    def place_of(self, request_id: str, checkpoint_id: str) -> QueuePlace | None:
        """Return where a request stands that has not started; None: its worker hasn't said so yet."""
        places = self._places.get(checkpoint_id)
        if places is None:
            places = self._places[checkpoint_id] = self._places_of(checkpoint_id)
        return places.of(request_id)

    def _places_of(self, checkpoint_id: str) -> QueuePlaces:
        now = time.time()
        held = [
            HeldModel(_is_ready(model), model.outlook, max(0.0, now - worker.heartbeat_at))
            for worker in self.workers
            for model in worker.models
            if model.checkpoint_id == checkpoint_id
        ]
        queued = self.queued_ids.get(checkpoint_id, [])
        num_taken = self.num_taken.get(checkpoint_id, 0)
        return QueuePlaces(held, queued, num_taken=num_taken, has_workers=bool(self.workers))


async def read_queues(checkpoint_ids: Iterable[str]) -> Queues:
    """Return the queues of models; three calls of Redis, whatever the number of requests.

    Raises:
        Unavailable: Redis can't be reached.
    """
    ordered = sorted(checkpoint_ids)

    async def read(client: Any) -> list[Any]:
        pipe = client.pipeline(transaction=False)
        pipe.hmget(redis_keys.OPEN_TOTALS, [redis_keys.num_open_field(key) for key in ordered] or [""])
        for checkpoint_id in ordered:
            for queue in redis_keys.model_queues(checkpoint_id):
                pipe.lrange(queue, 0, -1)
        found: list[Any] = await pipe.execute()
        return found

    workers = await worker_states()
    num_open, *found = await redis_repeatable(read)
    lists = iter(found)
    # A queue is filled at its left end, and taken from its right end.
    queued = {
        key: [item.decode() for _ in redis_keys.model_queues(key) for item in reversed(next(lists))] for key in ordered
    }
    taken = {key: max(0, int(number or 0) - len(queued[key])) for key, number in zip(ordered, num_open, strict=False)}
    return Queues(tuple(workers.values()), queued, taken)


async def open_requests() -> list[OpenRequest]:
    """Return the open requests of clients whose deadlines are the nearest, at most ``MAX_OPEN``.

    Raises:
        Unavailable: Redis can't be reached.
    """

    async def read(client: Any) -> tuple[list[bytes], list[bytes | None]]:
        ids: list[bytes] = await client.zrange(redis_keys.OPEN_REQUESTS, 0, MAX_OPEN - 1)
        return ids, await client.hmget(redis_keys.OPEN_ORIGINS, ids) if ids else []

    found: list[OpenRequest] = []
    for request_id, origin in zip(*await redis_repeatable(read), strict=True):
        if origin is not None:  # it hasn't ended between the two calls
            model, _, caller = origin.decode().partition(" ")
            found.append(OpenRequest(request_id.decode(), model, caller))
    return found


def open_request_ids_sync() -> list[bytes]:
    """Return the ids of ``open_requests``, for code without an event loop."""
    with redis_client_sync() as client:
        found: Any = client.zrange(redis_keys.OPEN_REQUESTS, 0, MAX_OPEN - 1)
    return list(found)


def _is_ready(model: ResidentModel) -> bool:
    return model.status == "ready" and model.stage != "unloading"
