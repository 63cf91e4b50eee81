"""A worker's runtime over a real Redis, without Celery; and a model manager alone."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from inference.errors import BlazrError, EngineDead
from inference.transport.held_messages import wake_worker
from inference.values.messages import GenerationEvent
from inference.worker.energy import NO_COUNTERS, EnergyCounters
from inference.worker.model_manager import ModelManager
from inference.worker.runtime import WorkerConfig, WorkerRuntime
from tests.inference.transport.collected import Collected
from tests.inference.transport.queued import enqueue
from tests.inference.worker.fakes import Client, FakePlans, FakePresence, message


class Bench:
    def __init__(self, plans: FakePlans, budget: int = 100, min_residence_s: float = 0.0) -> None:
        self.plans = plans
        self.presence = FakePresence()
        self.dead: list[EngineDead] = []
        self.client = Client()
        self.manager = ModelManager(
            plan=plans,
            presence=self.presence,
            budget_bytes=budget,
            on_dead=self.dead.append,
            min_residence_s=min_residence_s,
        )

    def send(self, request_id: str, **members: object) -> None:
        self.manager.submit(message(request_id, **members), self.client.on_events)

    def statuses(self) -> dict[str, str]:
        return {item.checkpoint_id: item.stage or item.status for item in self.manager.describe()}


class Worker:
    """A runtime that takes the messages which a test queues.

    Attributes:
        acked: Ids of the requests whose end was recorded, in order.
    """

    def __init__(
        self,
        url: str,
        client: redis.Redis,
        plans: FakePlans,
        name: str,
        *,
        counters: EnergyCounters = NO_COUNTERS,
        **config: object,
    ) -> None:
        self.client = client
        self.plans = plans
        self.acked: list[str] = []
        self.runtime = WorkerRuntime(
            WorkerConfig(
                **{
                    "worker_id": name,
                    "redis_url": url,
                    "device": "cpu",
                    "budget_bytes": 1000,
                    "max_active": 64,
                    "drain_grace_s": 5,
                    **config,
                }
            ),
            plans,
            counters=counters,
        )
        self.runtime.publisher._on_ended = self._end
        self.runtime.start()
        self.runtime.heartbeat.start()

    def _end(self, request_ids: Sequence[str]) -> None:
        self.runtime.intake.release(request_ids)
        self.acked.extend(request_ids)

    def deliver(self, item, *, had_before: bool = False) -> None:
        """Queue a message unless it is queued, and have it taken."""
        enqueue(self.client, item, is_again=had_before)
        self.take(item["model"])

    def take(self, checkpoint_id: str = "a") -> None:
        """Take the queued messages of a model, whether it is loaded or not."""
        self.runtime.intake.add(checkpoint_id)
        wake_worker(self.client, self.runtime.config.worker_id)

    def crash(self) -> None:
        """Stop everything without a word, as kill -9 would."""
        self.runtime.publisher.publish = lambda events, ended=(): None
        self.runtime.intake.stop()
        self.runtime.heartbeat._stopping = True
        self.runtime.control.stop()
        self.runtime.manager.drain(0)


async def collect(collected: Collected, timeout_s: float = 60) -> list[GenerationEvent]:
    return await collected.all(timeout_s)


def tokens(events: list[GenerationEvent]) -> list[int]:
    return [token for event in events for token in event.get("token_ids", ())]


def error(events: list[GenerationEvent]) -> BlazrError:
    assert events[-1]["type"] == "error", events[-1]
    return BlazrError.from_dict(events[-1]["error"])
