"""Workers that are killed, stopped or poisoned while clients read: every stream goes on exactly."""

from __future__ import annotations

import signal
import time

import pytest

from inference.worker.runtime import EXIT_FENCED
from tests.faults.ledger import Ledger
from tests.faults.pool import POISON
from tests.faults.site import Site, wait_until

pytestmark = pytest.mark.live

LONG = 600
HANDED_OVER_S = 0.5
"""After a worker's death: the tokens that it has published reach the clients within this time."""


def prompt(number: int) -> list[int]:
    return [40 + number, 50, 60, 70 + number]


def loaded(site: Site, num: int) -> tuple[Ledger, str]:
    """Open streams that have got tokens, and the worker that has most of them."""
    ledger = Ledger(site)
    for number in range(num):
        ledger.send(prompt(number), LONG)
    wait_until(lambda: all(len(entry.tokens) >= 3 for entry in ledger.entries), 30, "the first tokens of all streams")
    return ledger, max(site.workers, key=lambda worker_id: len(site.held_by(worker_id)))


@pytest.mark.fault(
    "F01",
    provoked="`kill -9` of one worker, or of both, under eight open streams",
    holds="every stream goes on, within 15 s with a second worker, within 40 s without; its tokens are those of an "
    "undisturbed run; nothing is left in flight",
)
@pytest.mark.parametrize("num_killed", [1, 2], ids=["with a spare", "with none"])
def test_f01_streams_outlive_the_kill_of_their_worker(site, reference, num_killed):
    ledger, victim = loaded(site, 8)
    victims = [victim] if num_killed == 1 else list(site.workers)
    assert site.held_by(victim)
    assert not any(entry.ends for entry in ledger.entries)
    killed_at = time.monotonic()
    for worker_id in victims:
        site.signal(worker_id, signal.SIGKILL)
    wait_until(lambda: len(site.deaths) == num_killed, 10, "the replacement of the killed workers")
    time.sleep(HANDED_OVER_S)
    before = [len(entry.tokens) for entry in ledger.entries]
    limit_s = (15 if num_killed == 1 else 40) - (time.monotonic() - killed_at)
    wait_until(
        lambda: all(
            entry.ends or len(entry.tokens) > number for entry, number in zip(ledger.entries, before, strict=True)
        ),
        limit_s, "the next tokens of all streams",
    )  # fmt: skip
    ledger.wait(110)
    ledger.check(reference)
    assert sorted(site.deaths) == [(worker_id, -signal.SIGKILL) for worker_id in sorted(victims)]


@pytest.mark.fault(
    "F08",
    provoked="SIGSTOP of a worker under eight streams until its lease has expired, then SIGCONT",
    holds="the other worker finishes its requests, token for token; the stopped one ends itself within 5 s of SIGCONT",
)
def test_f08_a_stopped_worker_is_replaced_and_ends_when_it_goes_on(site, reference):
    ledger, victim = loaded(site, 8)
    assert site.held_by(victim)
    process = site.workers[victim]
    site.signal(victim, signal.SIGSTOP)
    ledger.wait(110)  # its lease expires, and the other worker takes its requests
    site.signal(victim, signal.SIGCONT)
    wait_until(lambda: process.poll() is not None, 5, "the end of the fenced worker")
    assert process.returncode == EXIT_FENCED
    ledger.check(reference)


@pytest.mark.fault(
    "F30",
    provoked="a request that kills its worker whenever it runs, among 50 others",
    holds="it ends with an error after at most three lost workers; the 50 others get the tokens of an undisturbed run",
)
def test_f30_a_poison_is_stopped_and_harms_nobody(site, reference):
    ledger = Ledger(site)
    poisons = {20}
    for number in range(51):
        ledger.send(POISON if number in poisons else prompt(number), 60)
    ledger.wait(110)
    (poison,) = (ledger.entries[number] for number in poisons)
    assert "3 workers were lost" in poison.error
    assert 1 <= len(site.deaths) <= 3
    ledger.check(reference, failed=poisons)
