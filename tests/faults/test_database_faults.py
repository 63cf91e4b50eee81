"""A database that stops, locks or runs out of connections, a full disk, wrong clocks: no request is lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.faults import job_rows
from tests.faults.campaign import variant
from tests.faults.clock import has_compiler
from tests.faults.disturbed import await_consumers, run_steps
from tests.faults.proxy import Faults
from tests.faults.site import Site, wait_until
from tests.faults.test_site_faults import Load
from tests.faults.upload import Upload
from tests.faults.work import Work, right_tokens

pytestmark = pytest.mark.live

FIRST_NUMBER = 1600
"""Number of the first job of a ``Submitter``; the campaign's begin with 0."""


def is_ready(url: str) -> bool:
    """Whether a web process says that it can serve."""
    return httpx.get(f"{url}/readyz", timeout=10).status_code == 200


class Submitter:
    """Submits further jobs while the database is in trouble: each is stored, or refused with 503 in time.

    Attributes:
        accepted: Ids of the stored jobs, by number.
        statuses: Number of responses of each status.
    """

    def __init__(self, site: Site, *, limit_s: float) -> None:
        self._site = site
        self._limit_s = limit_s
        self._numbers = itertools.count(FIRST_NUMBER)
        self._http = httpx.Client(timeout=60)  # a client for each request takes longer to make than its request
        self._lock = threading.Lock()
        self.accepted: dict[int, str] = {}
        self.statuses: Counter[int] = Counter()

    def submit(self, num: int) -> None:
        """Submit jobs at once, to the web processes in turn."""
        with ThreadPoolExecutor(num) as pool:
            list(pool.map(self._submit, itertools.islice(self._numbers, num)))

    def _submit(self, number: int) -> None:
        begun = time.monotonic()
        body = {"endpoint": "completion", "body": variant(number).body}
        response = self._http.post(f"{self._site.urls[number % 2]}/api/jobs", json=body)
        took_s = time.monotonic() - begun
        with self._lock:
            self.statuses[response.status_code] += 1
        assert took_s < self._limit_s, took_s
        if response.status_code == 202:
            self.accepted[number] = response.json()["data"][0]["id"]
        else:
            assert response.status_code == 503, response.text
            assert int(response.headers["Retry-After"]) > 0


@pytest.mark.fault(
    "F17",
    provoked="every hint about new jobs is dropped on its way, and the connections to Redis are slow and are cut",
    holds="every job starts within 5 s, found in its row; the ledger is exact",
)
def test_f17_jobs_without_hints_are_found(database_site):
    site = database_site
    assert site.proxy is not None

    def dropped() -> None:
        hint = b"XADD\r\n$9\r\nblazr:ctl"
        site.proxy.faults = Faults(rewrite=lambda piece: piece.replace(hint, b"XADD\r\n$9\r\nblazr:nil"))
        time.sleep(3)

    def slow() -> None:
        site.proxy.faults = Faults(delay_s=0.05)
        for _ in range(3):
            time.sleep(0.7)
            site.proxy.cut()
        site.proxy.faults = Faults()
        await_consumers(site)

    run_steps(site, 12, dropped, slow)
    waits = site.rows(
        "select extract(epoch from started_at - created_at) from inference_generationjob where attempts = 1"
    )
    assert waits
    assert max(wait for (wait,) in waits) < 5


@pytest.mark.fault(
    "F19",
    provoked="PostgreSQL stops at once and stays away for seconds, while jobs, a batch and streams run",
    holds="requests that need it get 503 with Retry-After within 2 s, and readiness says so; both workers go on by "
    "themselves when it is back, and the ledger is exact",
)
def test_f19_a_stopped_database_loses_nothing(database_site, postgres):
    site, submitter = database_site, Submitter(database_site, limit_s=2.0)

    def stop() -> None:
        postgres.stop()
        try:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                submitter.submit(2)
                assert not any(map(is_ready, site.urls))
                time.sleep(0.1)
        finally:
            postgres.start()
        wait_until(lambda: all(map(is_ready, site.urls)), 10, "readiness")
        await_consumers(site)

    run_steps(site, 12, stop)
    assert set(submitter.statuses) == {503}


@pytest.mark.fault(
    "F68",
    provoked="PostgreSQL stops, then it hangs (SIGSTOP), each until the probes say so, while completions are sent",
    holds="/readyz is 503 within 10 s, and 200 within 10 s of its return; /livez stays 200",
)
@pytest.mark.parametrize("kind", ["stops", "hangs"])
def test_f68_probes_tell_that_the_database_is_away(database_site, postgres, kind):
    site = database_site

    def statuses(path: str, timeout_s: float) -> set[int]:
        with ThreadPoolExecutor() as pool:  # each waits for the database as long as it may
            return set(pool.map(lambda url: httpx.get(f"{url}{path}", timeout=timeout_s).status_code, site.urls))

    def readiness() -> set[int]:
        assert statuses("/livez", 2) == {200}
        return statuses("/readyz", 10)

    def until(status: int, what: str) -> None:
        wait_until(lambda: readiness() == {status}, 10, what)

    away, back = (postgres.stop, postgres.start) if kind == "stops" else (postgres.freeze, postgres.thaw)
    with Load(site) as load:
        load.wait_for_more()
        assert readiness() == {200}
        away()
        try:
            until(503, f"the end of readiness when PostgreSQL {kind}")
            assert httpx.get(f"{site.urls[0]}/readyz", timeout=10).json()["reasons"]
            assert readiness() == {503}  # still
        finally:
            back()
        until(200, "readiness with PostgreSQL")
        load.wait_for_more()
    assert load.seen.keys() <= {"200", "503 with Retry-After"}, load.seen
    await_consumers(site)


@pytest.mark.fault(
    "F73",
    provoked="`kill -9`, then SIGSTOP, of a worker that computes lines of a batch and jobs, beside another worker",
    holds="within 15 s the other worker has begun the last of them; each has one end, the right tokens and one charge",
)
def test_f73_the_work_of_a_lost_worker_starts_again_in_time(database_site):
    work = Work(database_site, right_tokens(database_site))
    try:
        job_rows.lost_workers(database_site, work, number=2, lines=12, seed=1)
    finally:
        work.close()


@pytest.mark.fault(
    "F20",
    provoked="another session locks the tables of jobs and of usage for longer than the limit of a lock; transactions "
    "of another session take rows of jobs in the opposite order, so that pairs deadlock, while jobs, a batch and "
    "streams run",
    holds="submissions are stored or get 503 within 8 s; the ledger is exact afterwards",
)
def test_f20_locks_and_deadlocks_are_waited_for(database_site):
    site, submitter = database_site, Submitter(database_site, limit_s=8.0)

    def lock() -> None:
        with site.locked("inference_generationjob", "inference_usagerecord"):
            begun = time.monotonic()
            while time.monotonic() < begun + 5.5:
                submitter.submit(2)
        await_consumers(site)

    def deadlock() -> None:
        for _ in range(3):
            submitter.submit(2)
            site.rows_in_reverse()

    def lapse() -> None:
        """The lease of a batch whose validation or end met a lock lapses at once, not after 30 s."""
        site.rows("update inference_batch set lease_until = now() where lease_until > now()")

    run_steps(site, 12, lock, deadlock, lapse, accepted=submitter.accepted)
    assert submitter.statuses[503] > 0
    assert submitter.statuses[202] > 0


@pytest.mark.fault(
    "F21",
    provoked="100 submissions at once over a database with 20 connections, of which others leave three, while jobs, a "
    "batch and streams run",
    holds="each is stored or refused with 503 and Retry-After within 10 s, none ends with 500; the ledger is exact",
)
def test_f21_more_requests_than_connections(database_site):
    site, submitter = database_site, Submitter(database_site, limit_s=10.0)

    def flood() -> None:
        with site.few_connections(3):
            submitter.submit(100)
        await_consumers(site)

    run_steps(site, 12, flood, accepted=submitter.accepted)
    assert submitter.statuses[503] > 0


@pytest.mark.skipif(not has_compiler(), reason="there is no g++ for the library that gives a process another clock")
@pytest.mark.fault(
    "F27",
    provoked="the clock of one worker is an hour ahead, that of the other an hour behind; both jump while they hold "
    "requests",
    holds="no lease is taken early, none lasts: every job runs once; the ledger is exact",
)
def test_f27_clocks_that_differ_and_jump(database_site):
    site = database_site
    first, second = site.workers

    def jump(first_s: int, second_s: int) -> Callable[[], None]:
        def step() -> None:
            site.set_clock(first, first_s)
            site.set_clock(second, second_s)
            time.sleep(1.5)

        return step

    def back() -> None:
        jump(0, 0)()
        await_consumers(site)

    run_steps(site, 12, jump(3600, -3600), jump(-3600, 3600), back)
    assert site.rows("select max(attempts), max(fence) from inference_generationjob") == [(1, 1)]


@pytest.mark.fault(
    "F22",
    provoked="the disk of a web process takes no more bytes in the middle of an upload",
    holds="507 with the reason, the upload is refused and leaves no byte; requests go on; the next upload succeeds",
)
def test_f22_a_full_disk_refuses_an_upload(database_site):
    site = database_site

    def full() -> None:
        upload = Upload(site, "too-much")
        with site.file_limit("web-0", size_bytes=1 << 20):
            response = upload.send()
        assert response is not None
        assert response.status_code == 507
        assert "no room" in response.json()["error"]["message"]
        assert upload.state()["state"] == "refused"
        assert "no room" in upload.state()["reason"]
        assert upload.left_behind() == []
        again = Upload(site, "fits")
        assert again.send() is None
        again.finish()
        again.wait("done")

    run_steps(site, 12, full)
