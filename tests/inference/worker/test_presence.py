"""Holder marks in Redis, and the queues that Celery's consumer reads."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from inference.errors import InvalidRequest
from inference.transport import keys as redis_keys
from inference.worker.presence import QueueSelector, RedisPresence

WORKER = "presence-test"
QUEUE = redis_keys.model_queue("a")


class Consumer:
    """Celery's consumer: its queues, and orders that its event loop carries out at once."""

    def __init__(self, *queues: str) -> None:
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=dict.fromkeys(queues))))
        self.is_cut = False

    def call_soon(self, function: Any) -> None:
        function()

    def add_task_queue(self, name: str) -> None:
        if self.is_cut:
            raise ConnectionError("cut")
        self.app.amqp.queues.consume_from[name] = None

    def cancel_task_queue(self, name: str) -> None:
        del self.app.amqp.queues.consume_from[name]

    @property
    def queues(self) -> list[str]:
        return list(self.app.amqp.queues.consume_from)


@pytest.fixture
def consumer() -> Consumer:
    return Consumer("default", redis_keys.model_queue("stale"))


@pytest.fixture
def presence(client, consumer):
    queues = QueueSelector()
    queues.attach(consumer)
    woken: list[int] = []
    found = RedisPresence(client, WORKER, queues, changed=lambda: woken.append(1))
    found.woken = woken
    yield found
    client.delete(redis_keys.holders("a"), redis_keys.load_requested("a"), redis_keys.FAILURES, QUEUE)


def test_a_selection_waits_for_the_consumer_and_leaves_other_queues_alone(consumer):
    queues = QueueSelector()
    queues.add(QUEUE)
    queues.add(redis_keys.model_queue("b"))
    queues.remove(redis_keys.model_queue("b"))
    assert consumer.queues == ["default", redis_keys.model_queue("stale")]
    queues.attach(consumer)
    assert consumer.queues == ["default", QUEUE]


def test_a_selection_that_a_cut_connection_missed_is_applied_with_the_next(consumer):
    queues = QueueSelector()
    queues.attach(consumer)
    consumer.is_cut = True
    queues.add(QUEUE)
    assert consumer.queues == ["default"]
    consumer.is_cut = False
    queues.attach(consumer)
    assert consumer.queues == ["default", QUEUE]


def test_an_advertised_model_has_a_holder_and_its_queue_is_read(presence, client, consumer):
    client.set(redis_keys.load_requested("a"), "1")
    presence.advertise("a")
    until = client.zscore(redis_keys.holders("a"), WORKER)
    assert time.time() < until <= time.time() + redis_keys.HOLDER_EXPIRE_S
    assert not client.exists(redis_keys.load_requested("a"))
    assert QUEUE in consumer.queues
    presence.pause("a")
    assert QUEUE not in consumer.queues
    assert client.zscore(redis_keys.holders("a"), WORKER) == until
    presence.resume("a")
    assert QUEUE in consumer.queues


@pytest.mark.parametrize("num_messages", [0, 2])
def test_a_withdrawn_model_has_no_holder_and_tells_of_messages_that_wait(presence, client, consumer, num_messages):
    presence.advertise("a")
    for number in range(num_messages):
        client.lpush(QUEUE, number)
    assert presence.withdraw("a") is bool(num_messages)
    assert client.zscore(redis_keys.holders("a"), WORKER) is None
    assert QUEUE not in consumer.queues


def test_the_last_error_of_a_load_is_kept_until_a_load_succeeds(presence, client):
    presence.load_ended("a", InvalidRequest("no such file."))
    found = json.loads(client.hget(redis_keys.FAILURES, "a"))
    assert (found["worker"], found["error"]["message"]) == (WORKER, "no such file.")
    presence.load_ended("a", None)
    assert client.hget(redis_keys.FAILURES, "a") is None


def test_a_redis_that_is_away_is_no_error_of_the_manager(consumer):
    queues = QueueSelector()
    queues.attach(consumer)
    woken: list[int] = []
    away = RedisPresence(
        redis.Redis.from_url("unix:///nowhere/redis.sock"), WORKER, queues, changed=lambda: woken.append(1)
    )
    away.advertise("a")
    assert QUEUE in consumer.queues  # messages that come through another connection are taken
    assert away.withdraw("a") is False
    away.load_ended("a", InvalidRequest("no."))
    away.changed()
    assert woken == [1]
