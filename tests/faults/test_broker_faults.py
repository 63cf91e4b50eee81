"""Redis that is wiped, away, full or flaky, and hints that are dropped, repeated or garbage: no request is lost."""

from __future__ import annotations

import base64
import json
import pickle
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from inference.transport import keys as redis_keys
from tests.faults.disturbed import SEED, await_consumers, run_steps
from tests.faults.ledger import Ledger
from tests.faults.site import Site, wait_until

pytestmark = pytest.mark.live

LOST, BACK = "can't be reached", "is reached again"


@pytest.mark.fault(
    "F12",
    provoked="`FLUSHALL`, and `kill -9` of Redis with the loss of its files, while jobs, a batch and streams run",
    holds="every job and line is done once, with the right tokens; each stream has one end; both workers "
    "consume again within 10 s",
)
def test_f12_a_redis_that_loses_everything_loses_no_job(site):
    def flush() -> None:
        site.client.flushall()
        await_consumers(site)

    def wipe() -> None:
        site.redis_wiped()
        await_consumers(site)

    run_steps(site, 16, flush, wipe)


@pytest.mark.fault(
    "F13",
    provoked="Redis is killed and stays away for seconds, while jobs, a batch and streams run",
    holds="submissions are stored or refused with 503 and Retry-After, within 2 s while Redis is away; readiness says "
    "so; each component logs one line when Redis goes and one when it is back; both workers consume within 10 s "
    "without a restart",
)
def test_f13_redis_away_refuses_soon_and_comes_back_by_itself(site, outage_s):
    processes = {name: process.pid for name, process in site.processes.items() if name != "redis"}

    sizes = site.log_sizes()

    def away() -> None:
        with site.away("redis"):
            probe_outage(site, outage_s, limit_s=2.0)
        site.await_redis()
        await_consumers(site)
        wait_until(lambda: all(is_ready(url) for url in site.urls), 10, "the readiness of all web processes")

    run_steps(site, 16, away)
    assert {name: process.pid for name, process in site.processes.items() if name != "redis"} == processes
    assert_two_lines(site, sizes)


def is_ready(url: str) -> bool:
    """Whether a web process says that it can serve."""
    return httpx.get(f"{url}/readyz", timeout=10).status_code == 200


def probe_outage(site: Site, seconds: float, *, limit_s: float) -> None:
    """Submit while Redis is away: what isn't stored is refused in time, with the time of the next attempt."""
    body = {"model": "demo", "prompt": [40, 50], "max_tokens": 3}
    job = {"endpoint": "completion", "body": body, "idempotency_key": "while Redis is away"}

    def probe(url: str) -> list[tuple[str, int, float]]:
        found = []
        for path, sent in (("/readyz", None), ("/v1/completions", body), ("/api/jobs", job)):
            begun = time.monotonic()
            response = httpx.request("POST" if sent else "GET", f"{url}{path}", json=sent, timeout=20)
            found.append((path, response.status_code, time.monotonic() - begun))
            assert response.status_code != 503 or int(response.headers["Retry-After"]) > 0
        return found

    until = time.monotonic() + seconds
    with ThreadPoolExecutor() as pool:
        while time.monotonic() < until:
            for path, status, took_s in (item for items in pool.map(probe, site.urls) for item in items):
                assert status == 503 or (path == "/api/jobs" and status == 202), (path, status)
                assert took_s < limit_s, path
            time.sleep(0.1)
    site.rows("delete from inference_generationjob where idempotency_key = ?", job["idempotency_key"])


SELDOM = "hints about new jobs"
"""The component that says it with its next use, which may not come."""


def assert_two_lines(site: Site, sizes: dict[str, int]) -> None:
    """Each component of each process logs the loss of Redis once, and its return once; nothing else is logged."""

    def outages(name: str) -> dict[str, list[str]]:
        """What each component has logged, in order; the return from an earlier outage is left out."""
        found: dict[str, list[str]] = defaultdict(list)
        for line in site.log_lines(sizes)[name]:
            if (phrase := LOST if LOST in line else BACK) in line and SELDOM not in line:
                component = line.partition(": ")[2].partition(": ")[0].partition(phrase)[0]
                if phrase == LOST or component in found:
                    found[component].append(phrase)
        return found

    for name in site.processes:
        if name == "redis":
            continue
        # The next message of beat may come five seconds later, or it may not notice anything.
        until = time.monotonic() + 30
        while any(said[-1] == LOST for said in outages(name).values()) and time.monotonic() < until:
            time.sleep(0.1)
        said = outages(name)
        assert all(phrases == [LOST, BACK] for phrases in said.values()) and (said or name == "beat"), (name, said)
        others = [line for line in site.log_lines(sizes)[name] if LOST not in line and BACK not in line]
        assert others == [], name


@pytest.mark.fault(
    "F14",
    provoked="Redis is at its memory limit and refuses writes, while jobs, a batch and streams run",
    holds="requests are refused with 429 or 503, never 500; what was accepted goes on when there is memory, and both "
    "workers consume within 10 s",
)
def test_f14_a_full_redis_refuses_and_loses_nothing(site):
    statuses: list[int] = []

    def full() -> None:
        old = site.client.config_get("maxmemory")["maxmemory"]
        site.client.config_set("maxmemory", "1")  # bytes
        try:
            until = time.monotonic() + 4
            while time.monotonic() < until:
                body = {"model": "demo", "prompt": [40, 50], "max_tokens": 3}
                response = httpx.post(f"{site.urls[0]}/v1/completions", json=body, timeout=10)
                statuses.append(response.status_code)
                time.sleep(0.1)
        finally:
            site.client.config_set("maxmemory", old)
        await_consumers(site)

    run_steps(site, 16, full)
    assert set(statuses) <= {429, 503}
    assert statuses


@pytest.mark.fault(
    "F15",
    provoked="`CLIENT KILL TYPE normal` each second, while jobs, a batch and streams run",
    holds="nothing is lost or doubled, and both workers consume within 10 s",
)
def test_f15_cut_connections_lose_nothing(site):
    def cut() -> None:
        for kind in ("normal", "pubsub"):
            site.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        time.sleep(1)

    run_steps(site, 16, *[cut] * 4, lambda: await_consumers(site))


@pytest.mark.fault(
    "F16",
    provoked="each request is in its queue five times, also behind its end, in random order; "
    "each hint about jobs comes five times",
    holds="each request has one end, the right tokens and one charge",
)
def test_f16_repeated_hints_run_nothing_twice(site, reference):
    dice = random.Random(SEED)
    seen: set[bytes] = set()
    queue = redis_keys.model_queue(site.checkpoint_id)

    ledger = Ledger(site)

    def repeat() -> None:
        begun = time.monotonic()
        # The campaign's own requests may all end between two looks: some longer ones are always there.
        while (took_s := time.monotonic() - begun) < 3 or (len(seen) <= 3 and took_s < 30):
            if sum(not entry.ends for entry in ledger.entries) < 4:
                ledger.send([40, 50], 120)
            seen.update(site.client.hkeys(redis_keys.MESSAGES))
            site.client.xadd(redis_keys.CONTROL_STREAM, {"jobs": "new"})
            if seen:
                site.client.lpush(queue, *dice.choices(sorted(seen), k=5))
                site.client.lpush(redis_keys.arrived(site.checkpoint_id), "1")
            time.sleep(0.05)
        ledger.wait(30)

    run_steps(site, 24, repeat)
    assert len(seen) > 3
    ledger.check(reference)


class _Canary:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (self._path, "w")


def garbage(canary: str) -> Sequence[bytes]:
    """Messages that are no requests: broken, of other serialisers, of other tasks, huge."""

    def message(body: bytes, *, content_type: str = "application/json", task: str = "inference.generate") -> bytes:
        properties = {
            "correlation_id": "garbage", "delivery_mode": 2, "delivery_info": {"exchange": "", "routing_key": "m.x"},
            "priority": 0, "body_encoding": "base64", "delivery_tag": f"garbage-{random.random()}",
        }  # fmt: skip
        headers = {"lang": "py", "task": task, "id": "garbage", "root_id": "garbage", "argsrepr": "", "kwargsrepr": ""}
        envelope = {
            "body": base64.b64encode(body).decode(), "content-encoding": "utf-8", "content-type": content_type,
            "headers": headers, "properties": properties,
        }  # fmt: skip
        return json.dumps(envelope).encode()

    nothing = b"[[], {}, {}]"
    return [
        b"", b"\x00\xff\xfe", b"{", b"[]", b"null", b"17", b'"text"', b"{}", b'{"body": "e30=", "properties": {}}',
        b"[" * 100_000, message(b"{"), message(b"null"), message(b"[]"), message(b"17"), message(nothing),
        message(b"[[null], {}, {}]"), message(b'[[{"request_id": []}], {}, {}]'), message(nothing, task="os.system"),
        message(nothing, task=""), message(nothing, task="inference.load_model"), message(b"\xff\xfe" + nothing),
        message(b'[["../../etc"], {}, {}]', task="inference.load_model"),
        message(pickle.dumps(_Canary(canary)), content_type="application/x-python-serialize"),
        message(pickle.dumps(_Canary(canary)), content_type="application/data"),
        message(nothing, content_type="application/x-yaml"), message(nothing, content_type="no/such"),
        message(b'[["' + b"x" * (20 << 20) + b'"], {}, {}]'),
    ]  # fmt: skip


@pytest.mark.fault(
    "F18",
    provoked="broken JSON, pickles, unknown tasks and 20 MiB bodies in the queues, entries of no kind in the streams",
    holds="no process ends, no payload is executed, nothing of it is left; requests and jobs end as without it",
)
def test_f18_garbage_on_the_queues_is_dropped(site, tmp_path):
    canary = tmp_path / "canary"

    def spill() -> None:
        for item in garbage(str(canary)):
            for queue in ("default", redis_keys.model_queue(site.checkpoint_id)):
                site.client.lpush(queue, item)
        for payload in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91\x80", redis_keys.pack([{"request_id": 1}])):
            for key in [redis_keys.CONTROL_STREAM, *site.client.keys(redis_keys.out("*"))]:
                for name in (b"e", b"q", b"cancel", b"\xff", b"unload", b"query"):
                    site.client.xadd(key, {name: payload})
        await_consumers(site)

    run_steps(site, 20, spill)
    assert not canary.exists()
    assert site.client.llen("default") == 0
