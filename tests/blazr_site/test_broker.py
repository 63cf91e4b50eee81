"""Connections to the broker: made again within seconds of its return, and lost without harm to running requests."""

from __future__ import annotations

import pytest
import redis
from kombu.exceptions import OperationalError

from blazr_site.broker import MAX_RECONNECT_PAUSE_S, BrokerConnection, Transport
from blazr_site.celery import app


def test_celery_connects_through_our_connection():
    assert isinstance(app.connection_for_read(), BrokerConnection)
    assert isinstance(app.connection_for_write(), BrokerConnection)


def test_pauses_between_attempts_stay_short(tmp_path, monkeypatch):
    """kombu's own would grow to thirty seconds, in which a worker takes no requests although Redis is back."""
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: None)
    pauses: list[float] = []
    connection = BrokerConnection(f"redis+socket://{tmp_path}/none.sock")
    with pytest.raises(OperationalError):
        connection.ensure_connection(lambda error, pause_s: pauses.append(pause_s), 12)
    assert pauses[0] <= 0.5
    assert max(pauses) == MAX_RECONNECT_PAUSE_S


def test_a_message_outlives_the_connection_that_delivered_it(redis_server):
    """Its worker still runs it: it is not returned to the queue, and its acknowledgement fails nobody."""
    client = redis.Redis.from_url(redis_server.client)
    connection = BrokerConnection(redis_server.celery)
    assert isinstance(connection.transport, Transport)
    queue = connection.SimpleQueue("outlives")
    queue.put({"a": 1})
    message = queue.get(timeout=60)
    assert client.hexists("unacked", message.delivery_tag)
    connection.collect(socket_timeout=1)
    connection.close()
    message.ack()
    assert client.llen("outlives") == 0
    assert client.hexists("unacked", message.delivery_tag)
    client.hdel("unacked", message.delivery_tag)
    client.zrem("unacked_index", message.delivery_tag)
    client.delete("_kombu.binding.outlives")


@pytest.fixture
def client(redis_server):
    found = redis.Redis.from_url(redis_server.client)
    yield found
    found.config_set("maxmemory", 0)
    found.flushall()
    found.close()


def test_a_redis_that_takes_no_writes_counts_as_away(client, redis_server, monkeypatch):
    """kombu would take a message from its queue, fail to record it, and so lose it."""
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: client.config_set("maxmemory", 0))
    client.config_set("maxmemory", 1)
    seen: list[Exception] = []
    connection = BrokerConnection(redis_server.celery)
    connection.ensure_connection(lambda error, pause_s: seen.append(error), 3)
    assert ["Redis takes no writes" in str(error) for error in seen] == [True]
    connection.release()


@pytest.mark.parametrize("item", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 50_000])
def test_a_message_that_is_none_is_dropped(client, redis_server, item, caplog):
    """It would end the worker, whose successor would read the next one."""
    received: list[object] = []
    with BrokerConnection(redis_server.celery) as connection:
        queue = connection.SimpleQueue("garbage")
        queue.put({"a": 1})
        queue.consumer.callbacks = [lambda body, message: received.append(body)]
        client.rpush("garbage", item)  # read first
        queue.consumer.consume()
        while not received:
            connection.drain_events(timeout=60)
    assert received == [{"a": 1}]
    assert client.llen("garbage") == 0
    assert "can't be read is dropped" in caplog.text
