"""The same processes on a Redis and a PostgreSQL that are somebody else's; and what cut connections do."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from inference.transport import keys as redis_keys
from tests.live.conftest import DEVICE, LiveServer, wait_until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, redis_server, postgres_url):
    found = LiveServer(
        tmp_path_factory.mktemp("cluster") / "data", *DEVICE, REDIS_URL=redis_server.celery, DATABASE_URL=postgres_url
    )
    found.redis_url = redis_server.client
    client = redis.Redis.from_url(redis_server.client)
    others = set(client.keys("blazr:w*"))  # of this process' own tests, which share the server
    try:
        found.wait_ready()
        yield found
    finally:
        if found.process.poll() is None:
            assert found.stop() == 0
            assert set(client.keys("blazr:w*")) <= others


def test_serves_on_postgres_and_a_given_redis(cluster):
    assert "database postgresql" in cluster.log()
    assert cluster.complete().status_code == 200
    assert not (cluster.data_dir / "db.sqlite3").exists()
    assert not (cluster.data_dir / "redis").exists()


def test_connections_that_are_cut_lose_no_token_and_no_worker(cluster):
    """Every connection to Redis is cut each 0.3 s while four streams run (celery issues 8030, 8091, 10205)."""
    body = {"max_tokens": 300, "ignore_eos": True}
    text, _ = cluster.stream(**body)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(cluster.stream(**body)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    for _ in range(6):
        cluster.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.3)
    for thread in threads:
        thread.join(60)
    assert texts == [text] * 4
    wait_until(lambda: cluster.complete().status_code == 200, 60, "the next answer")
    wait_until(lambda: cluster.client.hlen(redis_keys.MESSAGES) == 0, 60, "the last ack")
