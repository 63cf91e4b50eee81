"""A killed Redis and a killed web process: both are replaced, requests go on, and the logs stay short."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections import Counter

import httpx
import pytest

from blazr_site import children
from inference.transport import keys as redis_keys
from tests.live.conftest import LiveServer, token_ids, wait_until

pytestmark = pytest.mark.live
LONG = {"max_tokens": 400, "ignore_eos": True}
WORKER = "celery -q -A blazr_site.celery worker"
LINE = re.compile(r"^ *(\w+) │ \S+ \S+ WARNING (\S+): (.*)$", re.MULTILINE)


def _log_since(server: LiveServer, offset: int) -> str:
    return server.log()[offset:]


def _answers(server: LiveServer) -> bool:
    return server.complete().status_code == 200


def _await_stable_redis(server: LiveServer) -> None:
    """Wait until the pause before its next start is the shortest one again."""
    wait_until(
        lambda: server.client.info("server")["uptime_in_seconds"] > children.STABLE_AFTER_S, 60, "a stable Redis"
    )


def test_a_killed_redis_is_started_again_under_a_stream(server):
    """The stream is as if nothing had happened, and new requests are served by the same processes."""
    _await_stable_redis(server)
    text, chunks = server.stream(**LONG)
    processes = [server.pid_of(word) for word in (WORKER, "blazr_site.web", "blazr_site.celery beat")]
    killed_at = 0.0
    offset = len(server.log())

    def kill(number: int) -> None:
        nonlocal killed_at
        if number == 40:
            os.kill(server.pid_of("valkey-server"), signal.SIGKILL)
            killed_at = time.monotonic()

    disturbed, disturbed_chunks = server.stream(kill, **LONG)
    assert killed_at
    assert disturbed == text
    assert token_ids(disturbed_chunks) == token_ids(chunks)
    wait_until(lambda: _answers(server), 50, "the next answer")
    assert time.monotonic() - killed_at < 60
    wait_until(lambda: server.client.hlen(redis_keys.MESSAGES) == 0, 60, "the last acknowledgement")
    assert [server.pid_of(word) for word in (WORKER, "blazr_site.web", "blazr_site.celery beat")] == processes
    log = _log_since(server, offset)
    assert log.count("redis │ ended with SIGKILL, starts again in 0.2 s") == 1
    assert "Traceback" not in log


def test_while_redis_is_away_each_part_logs_one_line_and_one_at_its_return(server):
    """The server's directory is gone for six seconds, so that its restarts fail; then requests are served again."""
    _await_stable_redis(server)
    directory = server.data_dir / "redis"
    hidden = directory.with_name("redis-hidden")
    offset = len(server.log())
    directory.rename(hidden)
    try:
        os.kill(server.pid_of("valkey-server"), signal.SIGKILL)
        answers = []
        until = time.monotonic() + 6
        while time.monotonic() < until:
            started = time.monotonic()
            answers.append(server.complete().status_code)
            assert time.monotonic() - started < 5
            time.sleep(0.2)
        assert set(answers) == {503}
        assert httpx.get(f"{server.url}/livez").status_code == 200
        assert httpx.get(f"{server.url}/readyz").status_code == 503
    finally:
        hidden.rename(directory)
    wait_until(lambda: "redis" in "".join(_running(server)), 60, "the start of Redis")
    # Ten seconds where nothing else computes; other tests share the processors.
    wait_until(lambda: _answers(server), 60, "the first answer")
    wait_until(lambda: httpx.get(f"{server.url}/readyz", timeout=30).status_code == 200, 60, "readiness")

    def all_returned() -> bool:
        lost, back = _lines(_log_since(server, offset))
        return bool(lost) and lost == back

    wait_until(all_returned, 60, f"the line of each part's return in\n{_log_since(server, offset)}\nit")
    lost, _ = _lines(_log_since(server, offset))
    assert max(lost.values()) == 1
    assert {"web", "worker"} <= {process for process, _, _ in lost}
    assert ("worker", "celery.worker.consumer", "the broker") in lost
    log = _log_since(server, offset)
    assert len(log.splitlines()) < 40, log
    assert "Traceback" not in log
    pauses = [float(pause) for pause in re.findall(r"redis │ ended with .*, starts again in (\S+) s", log)]
    assert pauses[0] == 0.2
    assert pauses == sorted(pauses)


def _running(server: LiveServer) -> list[str]:
    try:
        return ["redis"] if server.client.ping() else []
    except Exception:
        return []


def _lines(log: str) -> tuple[Counter[tuple[str, str, str]], Counter[tuple[str, str, str]]]:
    """What was said to be lost, and to be back, with the process and the part that says so."""
    lost: Counter[tuple[str, str, str]] = Counter()
    back: Counter[tuple[str, str, str]] = Counter()
    for process, logger, message in LINE.findall(log):
        if logger.startswith("celery.worker.consumer"):
            logger = "celery.worker.consumer"
        if "can't be reached" in message:
            lost[process, logger, message.partition(":")[0].removesuffix(" can't be reached")] += 1
        elif "is reached again" in message:
            back[process, logger, message.partition(":")[0].removesuffix(" is reached again")] += 1
    return lost, back


def test_a_killed_web_process_is_replaced_without_a_refused_connection(server):
    """Connections wait in the supervisor's socket; those that came after the kill are served."""
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    outcomes: Counter[str] = Counter()
    stopping = threading.Event()

    def connect() -> None:
        while not stopping.is_set():
            try:
                socket.create_connection(address, timeout=20).close()
                outcomes["connected"] += 1
            except OSError as error:
                outcomes[type(error).__name__] += 1
            time.sleep(0.005)

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        victim = server.pid_of("blazr_site.web")
        os.kill(victim, signal.SIGKILL)
        started = time.monotonic()
        response = server.complete()
        took_s = time.monotonic() - started
    finally:
        stopping.set()
        thread.join(30)
    assert response.status_code == 200
    assert took_s < 60
    assert server.pid_of("blazr_site.web") != victim
    assert set(outcomes) == {"connected"}, outcomes
    assert outcomes["connected"] > 20
