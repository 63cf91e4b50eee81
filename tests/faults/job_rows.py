"""Rows of faults of jobs and batches: ``python -m tests.faults.job_rows F02 --number 20 --lines 500``, the long form.

Each function does its row on a running site, prints what it measured, and raises ``AssertionError`` if the row doesn't
hold. ``tests.faults.test_job_faults`` calls them with small numbers.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import orjson

from tests.faults.site import ROOT, Site, wait_until
from tests.faults.work import Work, job_body, right_tokens

ENDED_WITHIN_S = 120.0
"""From the last fault to the end of all work, on a machine with other work."""
RESTARTED_WITHIN_S = 15.0
"""From the loss of a worker until another one computes the last of its jobs and lines."""
WINDOW = 128
"""Lines that a worker holds at once (``inference.batches.runner.WINDOW``)."""


def say(text: str) -> None:
    """Print a line of the row's report."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def kills_under_a_batch(site: Site, work: Work, *, number: int, lines: int, seed: int) -> None:
    """F02: kill workers at random moments of a batch."""
    dice = random.Random(seed)
    batch_id = work.submit_batch(lines, f"f02-{seed}")
    moments = sorted(dice.uniform(0.05, 0.8) for _ in range(number))
    finished: list[set[int]] = []
    for moment in moments:
        wait_until(lambda share=moment: work.num_results() >= share * lines, ENDED_WITHIN_S, "the next results")
        victim = dice.choice([worker.worker_id for worker in site.ready_workers()] or list(site.workers))
        finished.append({key for (key,) in site.rows("select line_id from inference_batchresult")})
        site.signal(victim, signal.SIGKILL)
    work.wait(ENDED_WITHIN_S)
    work.check()
    ((num_claims,),) = site.rows("select sum(fence) from inference_batchline")
    again = num_claims - lines
    say(f"F02 seed {seed}: {lines} lines, {number} kills, {again} lines started again, batch {batch_id}")
    assert again <= number * WINDOW, f"{again} lines were started again, at most {number} * {WINDOW} were running"


def lost_workers(site: Site, work: Work, *, number: int, lines: int, seed: int) -> None:
    """F73: kill or stop, in turns, a worker that computes lines and jobs, and time their start at the other one.

    Over PostgreSQL: a process that is stopped within a transaction of SQLite keeps all others from writing.
    """
    dice = random.Random(seed)
    waits: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
    for turn in range(number):
        wait_until(lambda: len(site.ready_workers()) == 2, ENDED_WITHIN_S, "the load of the model by both workers")
        work.submit_batch(lines, f"f73-{seed}-{turn}")
        for job in range(turn * WINDOW, turn * WINDOW + lines // 4):
            work.submit_job(job)
        victim = wait_until(lambda: _busiest(site), ENDED_WITHIN_S, "the start of the work")
        time.sleep(dice.uniform(0.0, 0.1))
        how = list(waits)[turn % len(waits)]
        begun = time.monotonic()
        site.signal(victim, how)
        try:
            orphans = _claims(site, "state = 'running' and owner = ?", victim)
            wait_until(lambda lost=orphans: not lost & _claims(site, _OPEN), ENDED_WITHIN_S, "the restart of its work")
            if orphans:
                waits[how].append(time.monotonic() - begun)
        finally:
            if how == signal.SIGSTOP:
                site.signal(victim, signal.SIGCONT)
        work.wait(ENDED_WITHIN_S)
    work.check()
    for how, seconds in waits.items():
        assert seconds, f"no worker had work at its {how.name}"
        say(f"F73 seed {seed}: {how.name} of {len(seconds)} workers, their work restarted within {max(seconds):.1f} s")
        assert max(seconds) <= RESTARTED_WITHIN_S


_OPEN = "state in ('queued', 'running')"


def _claims(site: Site, condition: str, *parameters: object) -> set[tuple[str, int, int]]:
    """Table, key and fence of jobs and lines. A fence grows with the next claim, not when a row waits for it again."""
    tables = ("inference_generationjob", "inference_batchline")
    found = {table: site.rows(f"select id, fence from {table} where {condition}", *parameters) for table in tables}
    return {(table, *row) for table, rows in found.items() for row in rows}


def _busiest(site: Site) -> str | None:
    """The worker that computes most; None while nothing runs."""
    held = {name: len(_claims(site, "state = 'running' and owner = ?", name)) for name in site.workers}
    return max(held, key=held.__getitem__) if any(held.values()) else None


def deaths_of_a_web_process(site: Site, work: Work, points: list[tuple[str, str]]) -> None:
    """F03, F05: a web process dies at a point of a submission; the client sends it again.

    Args:
        points: A point and what is submitted there: ``job``, ``file`` or ``batch``. Each is a death of web-0.
    """
    site.arm("web-0", f"{points[0][0]}:kill:1")
    site.signal("web-0", signal.SIGKILL)
    for number, (point, kind) in enumerate(points):
        process = site.processes["web-0"]
        wait_until(lambda old=process: _replaced(site, old) or old.poll() is None, 10, "the start of web-0")
        wait_until(lambda: _serves(site, 0), 60, "the start of web-0")
        process = site.processes["web-0"]
        if number + 1 < len(points):
            site.arm("web-0", f"{points[number + 1][0]}:kill:1")
        begun = time.monotonic()
        _submit(site, work, kind, f"{point}-{number}", first=0)
        assert process.poll() == -signal.SIGKILL, f"web-0 didn't die at {point}"
        if kind == "job":
            started = "select 1 from inference_generationjob where started_at is null"
            wait_until(lambda query=started: not site.rows(query), 5, f"the start of the job, without {point}")
        took_s = time.monotonic() - begun
        say(f"F03/F05 {point}: {kind} accepted (and started, if a job) {took_s:.2f} s after it was first sent")
        assert took_s < 20, "the retry waited for something of the dead process"
    work.wait(ENDED_WITHIN_S)
    work.check()


def _submit(site: Site, work: Work, kind: str, name: str, *, first: int) -> None:
    if kind == "job":
        work.submit_job(len(work.jobs), first=first)
    elif kind == "file":
        count = "select count(*) from inference_storedfile"
        ((before,),) = site.rows(count)
        work.upload(3, name, first=first)
        assert site.rows(count) == [(before + 1,)]
    else:
        work.submit_batch(3, name, first=first)


def _replaced(site: Site, process: subprocess.Popen[bytes]) -> bool:
    return site.processes["web-0"] is not process


def _serves(site: Site, number: int) -> bool:
    try:
        return httpx.get(f"{site.urls[number]}/livez", timeout=20).status_code == 200
    except httpx.HTTPError:
        return False


def retries_at_once(site: Site, work: Work, *, number: int) -> None:
    """F06: the connection breaks before the response; then so many clients send the request with its key at once."""
    body = orjson.dumps(job_body(0))
    for url in site.urls:
        _send_and_leave(url, body, f"{work.label}-job-0")
    with ThreadPoolExecutor(number) as pool:
        ids = set(pool.map(lambda client: work.submit_job(0, first=client), range(number)))
    file_id = work.upload(2, "f06")
    batch = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    with ThreadPoolExecutor(number) as pool:
        send = lambda client: work.post("/v1/batches", "batch-f06", first=client, json=batch)["id"]  # noqa: E731
        batches = set(pool.map(send, range(number)))
    say(f"F06: {number} clients at once got the ids {ids} and {batches}")
    assert len(ids) == len(batches) == 1
    work.batches[batches.pop()] = 2
    work.wait(ENDED_WITHIN_S)
    work.check()


def _send_and_leave(url: str, body: bytes, key: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    head = (
        f"POST /api/jobs HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head.encode() + body)


def sweeps_at_once(site: Site, work: Work, *, number: int, jobs: int, seed: int) -> None:
    """F07: two processes sweep at once, one of them is killed and replaced, while leases lapse."""
    dice = random.Random(seed)
    command = [sys.executable, "-m", "tests.faults.sweeper", str(number // 2)]
    num_lapsed = num_killed = 0
    sweepers = [_sweeper(site, command) for _ in range(2)]
    work.submit_batch(jobs, f"f07-{seed}")
    try:
        while len(work.jobs) < jobs or any(sweeper.poll() is None for sweeper in sweepers):
            if len(work.jobs) < jobs:
                work.submit_job(len(work.jobs))
            num_lapsed += _lapse(site)
            time.sleep(0.02)  # the sweepers need the database's lock, too
            if num_killed == 0 and dice.random() < 0.3 and sweepers[0].poll() is None:
                sweepers[0].kill()
                sweepers[0].wait()
                sweepers[0] = _sweeper(site, command)
                num_killed += 1
    finally:
        for sweeper in sweepers:
            sweeper.kill()
            sweeper.wait()
    work.wait(ENDED_WITHIN_S)
    work.check()
    ((claims,),) = site.rows("select sum(fence) from inference_generationjob")
    say(f"F07 seed {seed}: {number} sweeps, {num_killed} killed, {num_lapsed} leases lapsed, {claims} claims of {jobs}")


def _sweeper(site: Site, command: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, cwd=ROOT, env=site.environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def _lapse(site: Site) -> int:
    """Let the leases of first attempts run out, as if their worker hung; later attempts count as crashes."""
    past = "datetime('now', '-60 seconds')"
    changed = 0
    for table in ("generationjob", "batchline"):
        query = f"update inference_{table} set lease_until = {past} where state = 'running' and fence = 1 returning 1"
        changed += len(site.rows(query))
    return changed


def window_that_ends(site: Site, work: Work, *, lines: int) -> None:
    """F28: the window of a batch ends while its lines run."""
    batch_id = work.submit_batch(lines, "f28")
    wait_until(lambda: work.num_results() >= 1, ENDED_WITHIN_S, "the first result")
    site.rows("update inference_batch set expires_at = datetime('now', '-1 seconds') where ended_at is null")
    begun = time.monotonic()
    work.wait(ENDED_WITHIN_S)
    done = site.rows("select num_completed, num_failed from inference_batch")
    say(f"F28: {lines} lines, completed and expired {done}, ended {time.monotonic() - begun:.1f} s after the window")
    work.check(endings={batch_id: "expired"}, codes={batch_id: "batch_expired"})


def cancels_at_random_moments(site: Site, work: Work, *, number: int, lines: int, seed: int) -> None:
    """F29: cancel jobs and batches at random moments."""
    dice = random.Random(seed)
    cancelled: list[str] = []
    waits: list[float] = []
    endings: dict[str, str] = {}
    lock = threading.Lock()

    def job(item: int, moment: float) -> None:
        job_id = work.submit_job(item)
        time.sleep(moment)
        state = work.post(f"/api/jobs/{job_id}/cancel", f"cancel-{item}")["state"]
        begun = time.monotonic()
        name = job_id.replace("-", "")
        ended = f"select 1 from inference_generationjob where job_id = '{name}' and finished_at is null"
        wait_until(lambda: not site.rows(ended), ENDED_WITHIN_S, f"the end of a cancelled job that was {state}")
        with lock:
            cancelled.append(job_id)
            waits.append(time.monotonic() - begun)

    def batch(item: int, moment: float) -> None:
        batch_id = work.submit_batch(lines, f"f29-{seed}-{item}")
        time.sleep(moment)
        response = httpx.post(f"{site.urls[item % 2]}/v1/batches/{batch_id}/cancel", timeout=20)
        with lock:
            if response.status_code == 200:
                endings[batch_id] = "cancelled"
            else:
                assert response.status_code == 409, response.text

    moments = [(item, dice.expovariate(3)) for item in range(number)]
    batches = [(item, dice.uniform(0, 1.5)) for item in range(max(1, number // 10))]
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(job, *item) for item in moments] + [pool.submit(batch, *item) for item in batches]
        for future in futures:
            future.result()
    work.wait(ENDED_WITHIN_S)
    states = dict(site.rows("select state, count(*) from inference_generationjob group by 1"))
    say(
        f"F29 seed {seed}: jobs {states}, {len(endings)} of {len(batches)} batches cancelled; from a cancel to the end "
        f"{statistics.median(waits):.2f} s (median), {max(waits):.2f} s (longest)"
    )
    work.check(cancelled=cancelled, endings=endings, codes=dict.fromkeys(endings, "batch_cancelled"))
    assert statistics.median(waits) <= 2.0


WEB_POINTS = [("hint", "job"), ("file.stored", "batch"), ("jobs.store", "job"), ("hint", "batch"),
              ("file.stored", "file"), ("file.published", "file")]  # fmt: skip


def main() -> None:
    """Do one row in its long form, on a site of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.job_rows", description=__doc__)
    parser.add_argument("row", choices=["F02", "F05", "F06", "F07", "F28", "F29"])
    parser.add_argument("--number", type=int, default=20, help="kills, clients, sweeps or cancels")
    parser.add_argument("--lines", type=int, default=500, help="lines of a batch, or jobs")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rows: dict[str, Callable[[Site, Work], None]] = {
        "F02": lambda site, work: kills_under_a_batch(
            site, work, number=given.number, lines=given.lines, seed=given.seed
        ),
        "F05": lambda site, work: deaths_of_a_web_process(site, work, WEB_POINTS),
        "F06": lambda site, work: retries_at_once(site, work, number=given.number),
        "F07": lambda site, work: sweeps_at_once(site, work, number=given.number, jobs=given.lines, seed=given.seed),
        "F28": lambda site, work: window_that_ends(site, work, lines=given.lines),
        "F29": lambda site, work: cancels_at_random_moments(
            site, work, number=given.number, lines=given.lines, seed=given.seed
        ),
    }
    with tempfile.TemporaryDirectory(prefix="blazr-rows-") as directory:
        site = Site(Path(directory))
        try:
            site.start(num_webs=2, num_workers=2)
            rows[given.row](site, Work(site, right_tokens(site)))
        finally:
            site.stop()


if __name__ == "__main__":
    main()
