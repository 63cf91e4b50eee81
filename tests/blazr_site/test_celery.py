"""The Celery application: what its workers read."""

from __future__ import annotations

import base64
import json
import pickle

import pytest
import redis
from kombu import Queue

from blazr_site.broker import BrokerConnection
from blazr_site.celery import app


class Opened:
    """Unpickling this makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_only_json_is_read_and_no_result_is_kept():
    assert list(app.conf.accept_content) == ["json"]
    assert (app.conf.task_serializer, app.conf.result_backend, app.conf.task_ignore_result) == ("json", None, True)


@pytest.mark.parametrize("content_type", ["application/x-python-serialize", "application/x-yaml"])
def test_pickled_messages_are_refused_unread(redis_server, tmp_path, caplog, content_type):
    """CVE-2026-3059 and its kind: a worker's queue takes whatever somebody with access to Redis puts there."""
    envelope = {
        "body": base64.b64encode(pickle.dumps(Opened(str(tmp_path / "canary")))).decode(),
        "content-encoding": "binary", "content-type": content_type, "headers": {},
        "properties": {
            "delivery_tag": "t", "delivery_info": {"exchange": "", "routing_key": "p"}, "body_encoding": "base64",
        },
    }  # fmt: skip
    client = redis.Redis.from_url(redis_server.client)
    client.rpush("pickled", json.dumps(envelope))
    received: list[object] = []
    with BrokerConnection(redis_server.celery) as connection:
        consumer = app.amqp.TaskConsumer(
            connection.channel(), queues=[Queue("pickled")], callbacks=[lambda body, message: received.append(body)]
        )
        with consumer:
            while "is dropped" not in caplog.text:
                connection.drain_events(timeout=60)
    assert "Refusing to deserialize untrusted content" in caplog.text
    assert not received and not (tmp_path / "canary").exists()
    client.delete("pickled", "_kombu.binding.pickled", "unacked", "unacked_index")
