"""The transport against a real Redis: what lies there is kombu's, and what is settled is not sent again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager

import pytest
import redis
from kombu import Connection, Consumer, Queue
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.transport.redis import Transport as KombuTransport

from inference.transport import keys as redis_keys
from inference.transport import kombu_transport as transport
from inference.transport.kombu_transport import TAKEN_TOGETHER, EngineChannel, EngineTransport, SettledTags, settled
from inference.transport.queue import task_envelope


@pytest.fixture
def client(redis_urls_in_settings):
    found = redis.Redis.from_url(redis_urls_in_settings.client, protocol=2)
    yield found
    found.close()


@pytest.fixture
def take(redis_urls_in_settings, client, monkeypatch):
    """Publishes a message as the web process does and takes it through a transport; gives kombu's message."""
    monkeypatch.setattr(EngineChannel, "worker_id", "transport-test")
    connections = []

    def take(transport):
        queue, tag = f"m.transport-{uuid.uuid4().hex}", uuid.uuid4().hex
        client.lpush(queue, task_envelope("some.task", ([1],), task_id="t", queue=queue, delivery_tag=tag))
        connection = Connection(redis_urls_in_settings.celery)
        connection.transport_cls = transport
        connections.append(connection)
        found = []
        with Consumer(connection.channel(), [Queue(queue)], on_message=found.append, accept=["json"]):
            connection.drain_events(timeout=5)
        return found[0]

    yield take
    for connection in connections:
        connection.release()
    client.delete(redis_keys.tags("transport-test"))


def unacked(client, message):
    tag = message.delivery_tag
    return client.hget(redis_keys.UNACKED, tag), client.zscore(redis_keys.UNACKED_INDEX, tag)


def test_a_taken_message_lies_where_kombu_puts_it_and_is_noted(client, take):
    ours, kombus = take(EngineTransport), take(KombuTransport)
    kept, theirs = unacked(client, ours), unacked(client, kombus)
    assert kept[1] == pytest.approx(theirs[1], abs=30)

    def shown(message, payload):
        for name, stand_in in ((message.delivery_tag, "TAG"), (message.delivery_info["routing_key"], "QUEUE")):
            payload = payload.replace(name.encode(), stand_in.encode())
        return json.loads(payload)

    assert shown(ours, kept[0]) == shown(kombus, theirs[0])
    assert ours.payload == kombus.payload
    assert client.smembers(redis_keys.tags("transport-test")) == {ours.delivery_tag.encode()}
    ours.ack()
    kombus.ack()
    assert unacked(client, ours) == unacked(client, kombus) == (None, None)


@pytest.fixture
def take_waiting(redis_urls_in_settings, client, monkeypatch):
    """Publishes messages, reads once, and gives what was delivered by that and the channel's queue."""
    monkeypatch.setattr(EngineChannel, "worker_id", "transport-test")
    connection = Connection(redis_urls_in_settings.celery)
    connection.transport_cls = EngineTransport

    def take(items, *, prefetch=0, holders=()):
        checkpoint_id = f"transport-{uuid.uuid4().hex}"
        queue = redis_keys.model_queue(checkpoint_id)
        for name in holders:
            client.zadd(redis_keys.holders(checkpoint_id), {name: time.time() + 60})
        for item in items:
            envelope = task_envelope("some.task", (item,), task_id=f"t{item}", queue=queue, delivery_tag=f"tag{item}")
            client.lpush(queue, envelope)
        found = []
        with Consumer(
            connection.channel(), [Queue(queue)], on_message=found.append, accept=["json"], prefetch_count=prefetch
        ):
            connection.drain_events(timeout=5)
        return found, queue

    yield take
    connection.release()
    client.delete(redis_keys.tags("transport-test"))


def test_what_waits_in_a_queue_is_taken_by_one_call_in_order(client, take_waiting):
    found, queue = take_waiting(range(5))
    assert [message.payload[0] for message in found] == [[0], [1], [2], [3], [4]]
    assert client.llen(queue) == 0
    for message in found:
        kept, at = unacked(client, message)
        assert json.loads(kept)[0]["headers"]["id"] == message.headers["id"]
        assert at == pytest.approx(time.time(), abs=30)
    tags = {message.delivery_tag.encode() for message in found}
    assert client.smembers(redis_keys.tags("transport-test")) == tags == {b"tag%d" % number for number in range(5)}
    # Each can be acknowledged, and given back, by itself.
    found[1].ack()
    found[2].requeue()
    assert unacked(client, found[1]) == unacked(client, found[2]) == (None, None)
    assert None not in unacked(client, found[3])
    assert json.loads(client.lpop(queue))["headers"]["id"] == "t2"
    for number in (0, 3, 4):
        found[number].ack()


def test_a_worker_takes_no_more_than_it_may_hold(client, take_waiting):
    found, queue = take_waiting(range(5), prefetch=3)
    assert (len(found), client.llen(queue)) == (3, 2)
    many, queue = take_waiting(range(40))
    assert (len(many), client.llen(queue)) == (1 + TAKEN_TOGETHER, 39 - TAKEN_TOGETHER)


def test_workers_of_one_model_share_what_waits(client, take_waiting):
    found, queue = take_waiting(range(9), holders=("one", "two"))
    assert (len(found), client.llen(queue)) == (5, 4)


def test_a_message_that_shows_no_tag_is_left_to_kombu(redis_urls_in_settings, client):
    queue = f"m.transport-{uuid.uuid4().hex}"
    client.lpush(queue, task_envelope("some.task", (1,), task_id="t", queue=queue, delivery_tag="first"))
    client.lpush(queue, b'{"no": "message"}')
    connection = Connection(redis_urls_in_settings.celery)
    connection.transport_cls = EngineTransport
    found = []
    with Consumer(connection.channel(), [Queue(queue)], on_message=found.append, accept=["json"]):
        connection.drain_events(timeout=5)
    assert [message.delivery_tag for message in found] == ["first"]
    assert client.lrange(queue, 0, -1) == [b'{"no": "message"}']
    client.delete(queue)
    # A channel that is closed gives back what was kept for it.
    connection.release()
    assert [json.loads(item)["headers"]["redelivered"] for item in client.lrange(queue, 0, -1)] == [True]
    client.delete(queue)


@pytest.fixture
def generations(redis_urls_in_settings, client, monkeypatch):
    """Publishes a generation of an open request and reads once; what comes of it goes to a callback."""
    monkeypatch.setattr(EngineChannel, "worker_id", "transport-test")
    checkpoint_id = f"transport-{uuid.uuid4().hex}"
    queue, tag = redis_keys.model_queue(checkpoint_id), uuid.uuid4().hex
    client.zadd(redis_keys.flight(checkpoint_id), {"request": time.time() + 60})
    connection = Connection(redis_urls_in_settings.celery)
    connection.transport_cls = EngineTransport
    channel = connection.channel()

    def read(on_message, *, num_waiting=0):
        for number in range(1 + num_waiting):
            envelope = task_envelope(
                redis_keys.GENERATE_TASK, (number,), task_id="request" if number == 0 else f"other{number}",
                queue=queue, delivery_tag=f"{tag}{number}",
            )  # fmt: skip
            client.lpush(queue, envelope)
        with Consumer(channel, [Queue(queue)], on_message=on_message, accept=["json"]):
            connection.drain_events(timeout=5)

    read.flight = redis_keys.flight(checkpoint_id)
    yield read
    connection.release()
    client.delete(redis_keys.tags("transport-test"), redis_keys.flight(checkpoint_id), queue)


def test_a_generation_begins_while_redis_keeps_its_message(client, generations, monkeypatch):
    order, found = [], []
    answer_of = transport._answer_of

    @contextmanager
    def noted(*command):
        with answer_of(*command) as answer:
            order.append("sent")
            yield lambda: (order.append("answered"), answer())[1]

    def begin(message):
        order.append("begun")
        found.append(message)

    monkeypatch.setattr(transport, "_answer_of", noted)
    generations(begin, num_waiting=2)
    assert order == ["sent", "begun", "answered", "begun", "begun"]
    assert [message.payload[0] for message in found] == [[0], [1], [2]]
    for message in found:
        assert None not in unacked(client, message)
        message.ack()


def test_a_generation_that_has_ended_by_then_is_not_kept(client, generations):
    client.delete(generations.flight)
    found = []
    generations(found.append, num_waiting=1)
    assert unacked(client, found[0]) == (None, None)
    assert None not in unacked(client, found[1])
    assert client.smembers(redis_keys.tags("transport-test")) == {found[1].delivery_tag.encode()}
    found[1].ack()


def test_a_server_that_forgot_the_script_gets_it_again(client, generations):
    client.script_flush()
    found = []
    generations(found.append, num_waiting=1)
    client.script_flush()
    client.zadd(generations.flight, {"request": time.time() + 60})
    generations(found.append)
    assert len(found) == 3
    assert all(None not in unacked(client, message) for message in found)


@pytest.mark.parametrize("name", ["send_command", "read_response"])
def test_a_connection_that_breaks_neither_loses_nor_doubles_a_generation(client, generations, monkeypatch, name):
    broken = []
    answer_of, original = transport._answer_of, getattr(redis.UnixDomainSocketConnection, name)

    def breaks(connection, *arguments, **options):
        if not broken:
            broken.append(name)
            raise redis.ConnectionError("cut")
        return original(connection, *arguments, **options)

    def with_a_break(*command):
        monkeypatch.setattr(redis.UnixDomainSocketConnection, name, breaks)
        return answer_of(*command)

    monkeypatch.setattr(transport, "_answer_of", with_a_break)
    found = []
    generations(found.append)
    assert broken == [name]
    assert [message.payload[0] for message in found] == [[0]]
    assert None not in unacked(client, found[0])
    found[0].ack()


def test_a_type_that_is_not_accepted_is_not_read(client, take_waiting):
    (message,), _ = take_waiting([1])
    message.accept = {"application/x-msgpack"}
    with pytest.raises(ContentDisallowed):
        message.decode()
    message.accept, message.body = {"application/json"}, b"{"
    with pytest.raises(DecodeError):
        message.decode()
    message.ack()


def test_what_was_settled_is_not_sent_again(client, take):
    message = take(EngineTransport)
    settled.add([message.delivery_tag])
    message.ack()
    assert message.acknowledged
    # The publisher would have removed it; the acknowledgement alone did not.
    assert None not in unacked(client, message)
    assert not settled.take(message.delivery_tag)
    client.zrem(redis_keys.UNACKED_INDEX, message.delivery_tag)
    client.hdel(redis_keys.UNACKED, message.delivery_tag)


def test_a_rejected_message_goes_back_to_its_queue(client, take):
    message = take(EngineTransport)
    message.requeue()
    assert unacked(client, message) == (None, None)
    assert client.llen(message.delivery_info["routing_key"]) == 1
    client.delete(message.delivery_info["routing_key"])


def test_the_channel_keeps_its_client_until_its_connections_change(take):
    channel = take(EngineTransport).channel
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
    channel._disconnect_pools()
    with channel.conn_or_acquire() as third:
        assert third is not first
        assert third.ping()


def test_settled_tags_are_taken_once():
    tags = SettledTags()
    tags.add(["a", "b"])
    assert tags.take("a")
    assert not tags.take("a")
    tags.clear()
    assert not tags.take("b")


@pytest.mark.parametrize("url", ["redis://h:1/0", "redis+socket:///s?virtual_host=0", "rediss://h:1/0"])
def test_every_spelling_of_an_address_means_this_transport_in_a_worker(url):
    code = (
        "from inference.transport.kombu_transport import EngineTransport, use_in_this_process\n"
        "from kombu import Connection\n"
        f"use_in_this_process(); assert Connection({url!r}).get_transport_cls() is EngineTransport"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
