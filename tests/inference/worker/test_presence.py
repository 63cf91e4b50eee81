"""Holder marks in Redis, and the models whose messages a worker takes."""

from __future__ import annotations

import json
import time

import pytest
import redis

from inference.errors import InvalidRequest
from inference.transport import keys as redis_keys
from inference.worker.intake import Intake
from inference.worker.presence import RedisPresence

WORKER = "presence-test"


@pytest.fixture
def intake(client):
    return Intake(client, WORKER, max_held=8, deliver=lambda *message: None, on_fenced=lambda: None)


@pytest.fixture
def presence(client, intake):
    woken: list[int] = []
    found = RedisPresence(client, WORKER, intake, changed=lambda: woken.append(1))
    found.woken = woken
    return found


def test_an_advertised_model_has_a_holder_and_its_messages_are_taken(presence, client, intake):
    client.set(redis_keys.load_requested("a"), "1")
    begun = time.time()
    presence.advertise("a")
    until = client.zscore(redis_keys.holders("a"), WORKER)
    assert begun + 1 < until <= time.time() + redis_keys.HOLDER_EXPIRE_S
    assert not client.exists(redis_keys.load_requested("a"))
    assert client.llen(redis_keys.wake(WORKER)) == 1  # the intake doesn't wait for its poll
    assert "a" in intake.models
    presence.pause("a")
    assert "a" not in intake.models
    assert client.zscore(redis_keys.holders("a"), WORKER) == until
    presence.advertise("a")  # Redis has lost it
    assert "a" not in intake.models
    presence.resume("a")
    assert "a" in intake.models
    presence.resume("b")
    assert "b" not in intake.models


@pytest.mark.parametrize("num_messages", [0, 2])
def test_a_withdrawn_model_has_no_holder_and_tells_of_messages_that_wait(presence, client, intake, num_messages):
    presence.advertise("a")
    for number in range(num_messages):
        client.lpush(redis_keys.model_queues("a")[number], number)
    assert presence.withdraw("a") is bool(num_messages)
    assert client.zscore(redis_keys.holders("a"), WORKER) is None
    assert "a" not in intake.models


def test_the_last_error_of_a_load_is_kept_until_a_load_succeeds(presence, client):
    presence.load_ended("a", InvalidRequest("no such file."))
    found = json.loads(client.hget(redis_keys.FAILURES, "a"))
    assert (found["worker"], found["error"]["message"]) == (WORKER, "no such file.")
    presence.load_ended("a", None)
    assert client.hget(redis_keys.FAILURES, "a") is None


def test_a_redis_that_is_away_is_no_error_of_the_manager(intake):
    woken: list[int] = []
    away = RedisPresence(
        redis.Redis.from_url("unix:///nowhere/redis.sock"), WORKER, intake, changed=lambda: woken.append(1)
    )
    away.advertise("a")
    assert "a" in intake.models  # messages that come through another connection are taken
    assert away.withdraw("a") is False
    away.load_ended("a", InvalidRequest("no."))
    away.changed()
    assert woken == [1]
