"""Workers and a hub over a real Redis."""

from __future__ import annotations

import pytest
import redis

from inference.transport import control
from inference.transport.hub import StreamHub
from inference.worker.energy import NO_COUNTERS, EnergyCounters
from tests.inference.worker.fakes import FakePlans
from tests.inference.worker.harness import Bench, Worker


@pytest.fixture
def client(redis_client: redis.Redis) -> redis.Redis:
    """A client of the session's Redis, instead of pytest-django's of the site."""
    return redis_client


@pytest.fixture
def worker(redis_urls_in_settings, client, monkeypatch):
    monkeypatch.setattr(control, "BLOCK_MS", 50)  # the end of a worker waits for it
    made: list[Worker] = []

    def make(
        name: str = "w1",
        *,
        config: dict[str, object] | None = None,
        counters: EnergyCounters = NO_COUNTERS,
        **plans: object,
    ) -> Worker:
        url, plan = redis_urls_in_settings.client, FakePlans(**plans)
        made.append(Worker(url, client, plan, name, counters=counters, **(config or {})))
        return made[-1]

    yield make
    for item in made:
        item.runtime.stop(grace_s=0)


@pytest.fixture
async def hub(redis_urls_in_settings):
    cancelled: list[str] = []

    async def cancel(request_id: str) -> None:
        cancelled.append(request_id)

    found = StreamHub(redis_urls_in_settings.client, web_id="web-1", cancel=cancel)
    found.cancelled = cancelled  # type: ignore[attr-defined]
    await found.start()
    yield found
    await found.close()


@pytest.fixture
def bench():
    made: list[Bench] = []

    def make(budget: int = 100, min_residence_s: float = 0.0, **plans: object) -> Bench:
        made.append(Bench(FakePlans(**plans), budget, min_residence_s))
        return made[-1]

    yield make
    for item in made:
        for llm in item.plans.llms.values():
            if getattr(llm, "gate", None) is not None:
                llm.gate.set()
        item.manager.drain(0)
