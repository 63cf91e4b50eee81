"""Seeded faults under jobs, streams and a batch: kill -9 and SIGSTOP of workers, web processes, Redis and beat."""

from __future__ import annotations

import itertools
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from tests.faults.ledger import Entry, stream
from tests.faults.site import Site

TARGETS = ("worker", "web", "worker", "redis", "beat")
"""What faults hit, in these shares."""
NUM_VARIANTS = 16
"""Different requests; the right tokens of each are computed once."""
NUM_CLIENTS = 6
JOBS_PER_STREAM = 5
JOBS_PER_LINE = 2
STOP_S = {"worker": (1.0, 12.0), "web": (1.0, 4.0), "redis": (1.0, 4.0), "beat": (1.0, 4.0)}
"""A worker is declared dead after 10 s without a heartbeat."""
PAUSE_S = (0.2, 1.5)
REQUEST_TIMEOUT_S = 10.0
GIVEN_UP_AFTER_S = 180.0
"""A request that is refused for so long counts as lost."""
RETRIED = (409, 429, 503)
"""Statuses after which a client sends its request again: the same key is in use, or the server is busy or away."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        target: worker, web, redis or beat.
        which: Number of the process among those of the target, modulo their number.
        stopped_s: Seconds between SIGSTOP and SIGCONT; 0: SIGKILL.
        pause_s: Seconds until the next fault.
    """

    target: str
    which: int
    stopped_s: float
    pause_s: float


def fault_sequence(num: int, seed: int) -> list[Fault]:
    """The faults of a seed; every target has its share of them."""
    dice = random.Random(seed)
    targets = [TARGETS[number % len(TARGETS)] for number in range(num)]
    dice.shuffle(targets)
    return [
        Fault(
            target,
            dice.randrange(2),
            dice.uniform(*STOP_S[target]) if dice.random() < 0.4 else 0.0,
            dice.uniform(*PAUSE_S),
        )
        for target in targets
    ]


def variant(number: int) -> Entry:
    """One of the different requests; every second one is sampled with a seed."""
    number %= NUM_VARIANTS
    return Entry([40 + number, 50, 60, 70 + number], 40 + 10 * number, seed=number if number % 2 else None)


class Campaign:
    """Sends requests to a site while faults hit its processes.

    Args:
        site: The processes.
        jobs: Number of jobs; lines of the batch and streams are in proportion.
        kills: Number of faults of the seed's sequence.
        seed: Of the sequence.
        label: Begin of the idempotency keys, another for each campaign of a site.
        steps: Faults to inject instead of a sequence, in order; each returns when the next one may come.

    Attributes:
        jobs: Ids of the jobs that the server has accepted, by number.
        batch_id: The accepted batch.
        num_lines: Lines of the batch.
        streams: Every stream that was begun, with its number; one that broke is begun again.
        trouble: What clients saw that no fault excuses.
        retried: Why clients sent requests again.
    """

    def __init__(
        self,
        site: Site,
        *,
        jobs: int,
        kills: int = 0,
        seed: int,
        steps: Sequence[Callable[[], object]] = (),
        label: str = "campaign",
    ) -> None:
        self._site = site
        self._continues: list[threading.Timer] = []
        self._steps = [*steps, *(partial(self._inflict, fault) for fault in fault_sequence(kills, seed))]
        self._num_jobs = jobs
        self._label = f"{label}-{seed}"
        self._num_faults = 0
        self._lock = threading.Lock()
        self._http = httpx.Client(timeout=REQUEST_TIMEOUT_S)
        self.jobs: dict[int, str] = {}
        self.batch_id = ""
        self.num_lines = max(1, jobs // JOBS_PER_LINE)
        self.streams: list[tuple[int, Entry]] = []
        self.trouble: list[str] = []
        self.retried: Counter[str] = Counter()

    def run(self) -> None:
        """Send all requests and inject all faults; return when the last stream and the last submission has ended."""
        num_streams = max(1, self._num_jobs // JOBS_PER_STREAM)
        work: list[tuple[float, Callable[[], None]]] = [(0.0, self._submit_batch)]
        work += [
            (number / self._num_jobs, lambda number=number: self._submit_job(number))
            for number in range(self._num_jobs)
        ]
        work += [(number / num_streams, lambda number=number: self._stream(number)) for number in range(num_streams)]
        pending = iter(sorted(work, key=lambda item: item[0]))
        threads = [threading.Thread(target=self._client, args=(pending,), daemon=True) for _ in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        self._inject()
        for thread in threads:
            thread.join()
        self._http.close()

    # --- clients ---------------------------------------------------------------------------------

    def _client(self, pending: Iterable[tuple[float, Callable[[], None]]]) -> None:
        """Do one piece of work after the other; each is due after its share of the faults, so that all have work."""
        while True:
            with self._lock:
                share, do = next(iter(pending), (0.0, None))
            if do is None:
                return
            while share * len(self._steps) > self._num_faults + 1:
                time.sleep(0.02)
            try:
                do()
            except Exception as error:
                self.trouble.append(f"a client failed: {error!r}")

    def _post(self, number: int, path: str, key: str, **members: Any) -> Any:
        """POST with an idempotency key, again and again until the response has arrived."""
        given_up_at = time.monotonic() + GIVEN_UP_AFTER_S
        for attempt in itertools.count(number):
            url = self._site.urls[attempt % len(self._site.urls)]
            try:
                response = self._http.post(f"{url}{path}", headers={"Idempotency-Key": key}, **members)
            except httpx.HTTPError as error:
                self.retried[type(error).__name__] += 1
            else:
                if response.is_success:
                    return response.json()
                self.retried[str(response.status_code)] += 1
                if response.status_code not in RETRIED:
                    raise AssertionError(f"{path}: {response.status_code} {response.text[:300]}")
            assert time.monotonic() < given_up_at, f"{path} is refused for {GIVEN_UP_AFTER_S:g} s: {self.retried}"
            time.sleep(0.1)
        raise AssertionError

    def _submit_job(self, number: int) -> None:
        key = f"{self._label}-{number}"
        body = {"endpoint": "completion", "body": variant(number).body, "idempotency_key": key}
        self.jobs[number] = self._post(number, "/api/jobs", key, json=body)["data"][0]["id"]

    def _submit_batch(self) -> None:
        content = "\n".join(
            json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": variant(n).body})
            for n in range(self.num_lines)
        )
        form = {"files": {"file": ("in.jsonl", content.encode())}, "data": {"purpose": "batch"}}
        file_id = self._post(0, "/v1/files", f"{self._label}-file", **form)["id"]
        body = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
        self.batch_id = self._post(0, "/v1/batches", f"{self._label}-batch", json=body)["id"]

    def _stream(self, number: int) -> None:
        given_up_at = time.monotonic() + GIVEN_UP_AFTER_S
        for attempt in itertools.count(number):
            entry = variant(number)
            self.streams.append((number, entry))
            stream(self._site.urls[attempt % len(self._site.urls)], entry)
            if entry.ends == ["done"]:
                return
            self.retried[f"stream {entry.status} {entry.ends}"[:60]] += 1
            assert time.monotonic() < given_up_at, f"stream {number} breaks for {GIVEN_UP_AFTER_S:g} s: {entry}"
            time.sleep(0.1)

    # --- faults ----------------------------------------------------------------------------------

    def _inject(self) -> None:
        for step in self._steps:
            step()
            self._num_faults += 1
        for timer in self._continues:
            timer.join()

    def _inflict(self, fault: Fault) -> None:
        if fault.target == "worker":
            self._await_worker()
        names = [name for name in self._site.processes if name.startswith(_PREFIXES[fault.target])]
        name = names[fault.which % len(names)]
        if fault.stopped_s:
            self._site.signal(name, signal.SIGSTOP)
            timer = threading.Timer(fault.stopped_s, self._site.signal, (name, signal.SIGCONT))
            timer.start()
            self._continues.append(timer)
        else:
            self._site.signal(name, signal.SIGKILL)
        time.sleep(fault.pause_s)

    def _await_worker(self) -> None:
        """Wait until a worker is ready: faults that only hit the start of workers leave no work to disturb."""
        given_up_at = time.monotonic() + 60
        while time.monotonic() < given_up_at:
            if self._site.ready_workers():
                return
            time.sleep(0.05)
        self.trouble.append("no worker was ready for 60 s")


_PREFIXES = {"worker": "faults-", "web": "web-", "redis": "redis", "beat": "beat"}
