"""Which delivery tags are recorded as a worker's."""

from __future__ import annotations

import pytest
import redis

from inference.transport import keys as redis_keys
from inference.worker.lease import LeaseKeeper, recorded_tags
from tests.inference.worker.fakes import wait_until

WORKER = "lease-test"


@pytest.fixture
def client(redis_urls_in_settings):
    found = redis.Redis.from_url(redis_urls_in_settings.client, protocol=2)
    found.delete(redis_keys.tags(WORKER))
    yield found
    found.delete(redis_keys.tags(WORKER))
    found.close()


@pytest.fixture
def keeper(client):
    return LeaseKeeper(client, WORKER, visibility_timeout_s=60)  # its thread isn't started: rounds are called here


def test_held_tags_are_recorded_until_a_round_finds_them_released(client, keeper):
    keeper.hold("held")
    keeper.hold("released")
    keeper._renew()
    assert recorded_tags(client, WORKER) == {"held", "released"}
    keeper.release(["released"])
    keeper._renew()
    assert recorded_tags(client, WORKER) == {"held"}
    keeper.release(["held"])
    keeper._renew()
    assert recorded_tags(client, WORKER) == set()


def test_a_new_tag_is_recorded_without_waiting_for_the_next_round(client, keeper):
    keeper.start()
    wait_until(lambda: client.exists(redis_keys.tags(WORKER)) == 0)
    keeper.hold("new")
    wait_until(lambda: recorded_tags(client, WORKER) == {"new"}, 5)
    keeper.stop()


def test_renewing_resets_the_age_of_what_is_still_in_the_books_only(client, keeper):
    client.zadd(redis_keys.UNACKED_INDEX, {"aged": 1.0})
    for tag in ("aged", "acknowledged"):
        keeper.hold(tag)
    keeper._renew()
    assert client.zscore(redis_keys.UNACKED_INDEX, "aged") > 1.0
    assert client.zscore(redis_keys.UNACKED_INDEX, "acknowledged") is None
    client.zrem(redis_keys.UNACKED_INDEX, "aged")
