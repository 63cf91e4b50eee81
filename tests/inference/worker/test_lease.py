"""Which delivery tags are recorded as a worker's."""

from __future__ import annotations

import pytest
import redis

from inference.transport import keys as redis_keys
from inference.worker.lease import LeaseKeeper, record_tags, recorded_tags

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


def test_a_tag_that_is_taken_while_leases_are_renewed_stays_recorded(client, keeper):
    keeper.hold("old", is_recorded=True)
    record_tags(client, WORKER, ["old", "taken"])  # as the transport does, before anybody holds it
    keeper._renew()
    assert recorded_tags(client, WORKER) == {"old", "taken"}
    keeper.hold("taken", is_recorded=True)
    keeper._renew()
    keeper._renew()
    assert recorded_tags(client, WORKER) == {"old", "taken"}


def test_a_tag_that_nobody_holds_is_recorded_for_two_rounds_at_most(client, keeper):
    keeper.hold("held")
    record_tags(client, WORKER, ["released"])
    keeper._renew()
    keeper._renew()
    assert recorded_tags(client, WORKER) == {"held"}
    keeper.release(["held"])
    keeper._renew()
    keeper._renew()
    assert recorded_tags(client, WORKER) == set()


def test_a_tag_that_is_held_between_two_looks_stays(client, keeper):
    record_tags(client, WORKER, ["slow"])
    keeper._renew()
    held = keeper.held
    answers = iter([[], ["slow"]])
    keeper.held = lambda: next(answers)  # it is held just after the round has looked for the first time
    keeper._renew()
    keeper.held = held
    assert recorded_tags(client, WORKER) == {"slow"}


def test_renewing_resets_the_age_of_what_is_still_in_the_books_only(client, keeper):
    client.zadd(redis_keys.UNACKED_INDEX, {"aged": 1.0})
    for tag in ("aged", "acknowledged"):
        keeper.hold(tag)
    keeper._renew()
    assert client.zscore(redis_keys.UNACKED_INDEX, "aged") > 1.0
    assert client.zscore(redis_keys.UNACKED_INDEX, "acknowledged") is None
    client.zrem(redis_keys.UNACKED_INDEX, "aged")
