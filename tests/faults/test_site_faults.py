"""Web processes and workers that are killed, stopped and restarted under load; probes, sockets and slow clients."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inference.host.confinement import confinement
from tests.faults.ledger import Ledger
from tests.faults.pool import DRAIN_GRACE_S, GIL_HOLDER, STUCK_AFTER_S
from tests.faults.site import Site, wait_until

pytestmark = pytest.mark.live

NUM_CONNECTIONS = 500
LONG = 900
"""So many tokens of 16 streams take longer than the grace time, and than this process needs to kill another one."""


def prompt(number: int) -> list[int]:
    return [40 + number, 50, 60, 70 + number]


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream of the Responses API."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


@pytest.mark.fault(
    "F04",
    provoked="`kill -9` of the web process that streams a background response and eight completions",
    holds="the client continues the response at the other process, and at the restarted one, with every event once; "
    "the completions succeed when they are sent again; nothing is left in flight",
)
def test_f04_a_stream_goes_on_at_another_web_process(site, reference):
    ledger = Ledger(site)
    body = {
        "model": "demo", "input": "What is a list?", "background": True, "stream": True, "temperature": 0,
        "max_output_tokens": 900, "ignore_eos": True,
    }  # fmt: skip
    told: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{site.urls[0]}/v1/responses", json=body, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for number in range(16):
            ledger.send(prompt(number), LONG)  # every second one at the other process
        wait_until(lambda: all(entry.tokens for entry in ledger.entries), 30, "the first tokens of all streams")
        stream = events(response)
        told += itertools.islice(stream, 12)
        site.signal("web-0", signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            told += stream
    response_id, number = told[0]["response"]["id"], told[-1]["sequence_number"]
    assert not told[-1]["type"].startswith("response.incomplete")
    path = f"/v1/responses/{response_id}?stream=true"
    with httpx.stream("GET", f"{site.urls[1]}{path}&starting_after={number}", timeout=60) as response:
        told += events(response)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["usage"]["output_tokens"] == 900
    with httpx.stream("GET", f"{site.urls[0]}{path}", timeout=60) as response:
        assert list(events(response)) == told
    ledger.wait(110)
    cut = [entry for entry in ledger.entries if entry.ends != ["done"]]
    assert [ledger.entries.index(entry) for entry in cut] == list(range(0, 16, 2))
    retried = Ledger(site)
    for entry in cut:
        retried.send(entry.prompt, entry.max_tokens)
    ledger.entries = [entry for entry in ledger.entries if entry not in cut]
    retried.wait(110)
    retried.check(reference)
    ledger.check(reference)
    assert site.deaths == []


@pytest.mark.fault(
    "F09",
    provoked="SIGTERM of a worker under 16 streams and a batch of 20 lines",
    holds="the process ends with code 0 within its grace time and 5 s; its streams go on at the other worker with the "
    "tokens of an undisturbed run; every line is in the output once",
)
def test_f09_a_worker_that_is_asked_to_stop_loses_nothing(site, reference):
    ledger = Ledger(site)
    for number in range(16):
        ledger.send(prompt(number), LONG)
    batch = Batch(site, 20)
    wait_until(lambda: all(len(entry.tokens) >= 3 for entry in ledger.entries), 30, "the first tokens of all streams")
    victim = max(site.workers, key=lambda worker_id: len(site.held_by(worker_id)))
    process = site.workers[victim]
    assert site.held_by(victim)
    asked_at = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(DRAIN_GRACE_S)
    # What the worker still has now, it hands back; a fast one's end may come after the end of all streams.
    assert any(not entry.ends for entry in ledger.entries)
    assert process.wait(60) == 0
    took_s = time.monotonic() - asked_at
    assert took_s < DRAIN_GRACE_S + 5, took_s
    ledger.wait(110)
    ledger.check(reference)
    assert sorted(batch.output()) == sorted(f"r{number}" for number in range(20))
    wait_until(lambda: site.deaths, 5, "the restart of the worker")
    assert site.deaths == [(victim, 0)]


def test_a_worker_whose_gil_is_held_is_replaced_and_its_streams_go_on(site, reference):
    """Its step watch is a thread that needs the GIL, too."""
    ledger = Ledger(site)
    holder = ledger.send([*GIL_HOLDER, 50], 20)
    for number in range(8):
        ledger.send(prompt(number), LONG)
    wait_until(lambda: site.deaths, STUCK_AFTER_S + 10, "the end of the worker")
    (victim, code), *others = site.deaths
    assert (code, others) == (1, [])
    ledger.wait(110)
    ledger.check(reference)
    assert len(holder.tokens) == 20
    assert "_hold_gil" in (site.directory / f"{victim}.log").read_text()


@pytest.mark.fault(
    "F10",
    provoked="SIGTERM of every process in turn, a web process and a worker at a time, under 20 requests a second",
    holds="every request has its response: 200, or 503 with Retry-After; all processes end with code 0",
)
def test_f10_a_rolling_restart_is_not_noticed(site):
    with Load(site) as load:
        for names in (["web-0", "faults-0", "beat"], ["web-1", "faults-1"]):
            wait_until(lambda: len(site.ready_workers()) == 2, 120, "the model in both workers")
            ended = {name: site.processes[name] for name in names}
            for process in ended.values():
                os.kill(process.pid, signal.SIGTERM)
            codes = {name: process.wait(60) for name, process in ended.items()}
            assert set(codes.values()) == {0}, codes
            wait_until(lambda gone=ended: all(site.processes[name] is not gone[name] for name in gone), 10, "restarts")
        wait_until(lambda: len(site.ready_workers()) == 2, 120, "the model in both workers")
        wait_until(lambda: all(is_alive(url) for url in site.urls), 120, "both web processes")
        load.wait_for_more()
        wait_until(lambda: load.seen["200"] > 50, 60, "enough responses")
    assert load.seen.keys() <= {"200", "503 with Retry-After"}, load.seen


def is_alive(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.fault(
    "F26",
    provoked="500 connections to a web process that may open 256 files",
    holds="connections beyond three quarters of the files are closed with 503; requests on the others are served, with "
    "database and Redis; the process serves new ones within 5 s of the end of the load",
)
def test_f26_a_web_process_without_file_descriptors_recovers(site):
    process, url = site.processes["web-0"], site.urls[0]
    files = Path(f"/proc/{process.pid}/fd")
    limit = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (256, limit[1]))
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    log = site.directory / "web-0.log"
    num_logged = log.stat().st_size
    try:
        with httpx.Client(base_url=url, timeout=10) as early, contextlib.ExitStack() as opened:
            assert early.get("/livez").status_code == 200  # its connection stays open
            connections = [
                opened.enter_context(socket.create_connection(address, timeout=10)) for _ in range(NUM_CONNECTIONS)
            ]
            refused = connections[-1]
            assert refused.recv(1 << 12).startswith(b"HTTP/1.1 503 ")
            assert refused.recv(1) == b""
            assert 150 < len(list(files.iterdir())) < 220
            body = {"model": "demo", "prompt": prompt(1), "max_tokens": 8}
            responses = [early.get(path) for path in ("/livez", "/readyz", "/v1/models", "/api/jobs", "/metrics", "/")]
            responses.append(early.post("/v1/completions", json=body))
            assert [response.status_code for response in responses] == [200, 200, 200, 200, 200, 302, 200]
        wait_until(lambda: is_alive(url), 5, "a response after the last connection has closed")
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limit)
    assert process.poll() is None
    assert log.stat().st_size == num_logged


@pytest.mark.fault(
    "F67",
    provoked="`manage.py check --deploy` for a site behind a TLS proxy; exceptions in a view of the API and of a page; "
    "all sockets of all processes listed",
    holds="no warning; a 500 without file names, code or settings; the web processes' ports on their address are the "
    "only sockets of the internet protocols that listen or are bound",
)
def test_f67_checks_are_clean_errors_are_silent_and_no_other_port_is_open(site):
    deployed = {"BLAZR_HOST": "0.0.0.0", "BLAZR_ALLOWED_HOSTS": "llm.example", "BLAZR_HTTPS": "true"}
    done = site.manage("check", "--deploy", "--fail-level", "WARNING", **deployed)
    assert "no issues" in done.stdout or confinement().gaps, done.stderr
    assert "security.W" not in done.stderr
    with httpx.Client(base_url=site.urls[0], timeout=10) as client:
        body = {"model": "demo", "input": "Hi", "max_output_tokens": 4, "store": True}
        response_id = client.post("/v1/responses", json=body).json()["id"]
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get("/login/").text)[1]
        form = {"csrfmiddlewaretoken": token, "username": "ada", "password": "canary-7"}
        with sqlite3.connect(site.directory / "db.sqlite3", timeout=20, isolation_level=None) as database:
            # Items that no response has.
            database.execute("update inference_storedresponse set input_items = '[\"canary-8\"]'")
            database.execute("alter table auth_user rename to auth_user_away")
            try:
                body["previous_response_id"] = response_id
                failed = [client.post("/v1/responses", json=body), client.post("/login/", data=form)]
            finally:
                database.execute("alter table auth_user_away rename to auth_user")
                database.execute("delete from inference_storedresponse")
    for response in failed:
        assert not re.search(r"Traceback|\.py\b|line \d|canary|auth_user|SECRET|settings", response.text), response.text
    assert [response.status_code for response in failed] == [500, 500]
    ports = {("127.0.0.1", int(url.rpartition(":")[2])) for url in site.urls}
    assert open_ports(process.pid for process in site.processes.values()) == ports


def open_ports(leaders: Iterable[int]) -> set[tuple[str, int]]:
    """Addresses of the TCP sockets that listen and of the UDP sockets, of processes and all in their sessions."""
    sessions, found = set(leaders), set()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(directory.name)) not in sessions:
                continue
            inodes = {str(path.readlink()) for path in (directory / "fd").iterdir()}
            for name in ("tcp", "tcp6", "udp", "udp6"):
                for line in (directory / "net" / name).read_text().splitlines()[1:]:
                    fields = line.split()
                    if f"socket:[{fields[9]}]" in inodes and (name.startswith("udp") or fields[3] == "0A"):
                        host, _, port = fields[1].partition(":")
                        raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
                        found.add((str(ip_address(raw)), int(port, 16)))
    return found


@pytest.mark.fault(
    "F68",
    provoked="SIGSTOP of Redis, then of both workers, each until the probes say so, while completions are sent",
    holds="/readyz is 503 within 10 s, and 200 within 10 s of SIGCONT; /livez stays 200; the counters of completed "
    "requests and of tokens are what the clients got",
)
def test_f68_probes_and_counters_tell_the_truth(site):
    def statuses(path: str) -> set[int]:
        return {httpx.get(f"{url}{path}", timeout=10).status_code for url in site.urls}

    before = counters(site)
    with Load(site) as load:
        for names in (["redis"], list(site.workers)):
            load.wait_for_more()
            assert statuses("/readyz") == {200}
            try:
                for name in names:
                    site.signal(name, signal.SIGSTOP)
                wait_until(lambda: statuses("/readyz") == {503}, 10, f"the end of readiness without {names}")
                assert statuses("/livez") == {200}
            finally:
                for name in names:
                    site.signal(name, signal.SIGCONT)
            wait_until(lambda: statuses("/readyz") == {200}, 10, f"readiness with {names}")
        load.wait_for_more()
    assert load.seen.keys() <= {"200", "503 with Retry-After"}, load.seen
    after = counters(site)
    assert after["completed"] - before["completed"] == load.seen["200"]
    assert after["tokens"] - before["tokens"] == load.num_tokens


def counters(site: Site) -> dict[str, float]:
    """Completed requests and delivered tokens, of both web processes."""
    found = Counter({"completed": 0, "tokens": 0})
    for url in site.urls:
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=10).text):
            for sample in family.samples:
                if sample.name == "blazr_requests_total" and sample.labels["outcome"] == "completed":
                    found["completed"] += sample.value
                elif sample.name == "blazr_generated_tokens_total":
                    found["tokens"] += sample.value
    return dict(found)


class Load:
    """Sends 20 short completions a second, to each web process in turn and each over a connection of its own.

    Attributes:
        seen: How often each kind of response came.
        num_tokens: Tokens that the responses with 200 count in their usage.
    """

    NUM_CLIENTS = 8

    def __init__(self, site: Site) -> None:
        self._urls = site.urls
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(self.NUM_CLIENTS)]
        self._lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.num_tokens = 0

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"

    def wait_for_more(self) -> None:
        """Wait until all web processes have sent responses once more."""
        num = self.seen["200"]
        wait_until(lambda: self.seen["200"] >= num + 2 * len(self._threads), 30, "further responses")

    def _send(self, number: int) -> None:
        for turn in itertools.count(number):
            if self._stopping.wait(self.NUM_CLIENTS / 20):
                return
            body = {"model": "demo", "prompt": prompt(turn % 16), "max_tokens": 8, "temperature": 0}
            try:
                response = httpx.post(f"{self._urls[turn % len(self._urls)]}/v1/completions", json=body, timeout=60)
            except httpx.HTTPError as error:
                self._count(repr(error), 0)
                continue
            num_tokens = response.json()["usage"]["completion_tokens"] if response.status_code == 200 else 0
            is_told = "retry-after" in response.headers
            self._count(f"{response.status_code}{' with Retry-After' if is_told else ''}", num_tokens)

    def _count(self, what: str, num_tokens: int) -> None:
        with self._lock:
            self.seen[what] += 1
            self.num_tokens += num_tokens


class Batch:
    """A batch of completions, which is accepted."""

    def __init__(self, site: Site, num_lines: int) -> None:
        self._url = site.urls[0]
        content = "\n".join(
            json.dumps({
                "custom_id": f"r{number}", "method": "POST", "url": "/v1/completions",
                "body": {"model": "demo", "prompt": prompt(number), "max_tokens": 200, "ignore_eos": True},
            })
            for number in range(num_lines)
        )  # fmt: skip
        form: dict[str, Any] = {"files": {"file": ("in.jsonl", content.encode())}, "data": {"purpose": "batch"}}
        file_id = self._send("POST", "/v1/files", **form).json()["id"]
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        self._id = self._send("POST", "/v1/batches", json=body).json()["id"]

    def _send(self, method: str, path: str, **members: Any) -> httpx.Response:
        response = httpx.request(method, f"{self._url}{path}", timeout=30, **members)
        assert response.is_success, response.text
        return response

    def output(self) -> list[str]:
        """The ids of the lines that have succeeded; waits for the end."""

        def ended() -> Any:
            found = self._send("GET", f"/v1/batches/{self._id}").json()
            return found if found["status"] in ("completed", "failed", "expired", "cancelled") else None

        found = wait_until(ended, 60, "the end of the batch")
        assert (found["status"], found["request_counts"]["failed"]) == ("completed", 0)
        lines = self._send("GET", f"/v1/files/{found['output_file_id']}/content").text.splitlines()
        return [line["custom_id"] for line in map(json.loads, lines) if line["response"]["status_code"] == 200]
