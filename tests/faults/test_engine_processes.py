"""Engines that hang, or whose thread ends, in real workers: the process is replaced, and its streams go on."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from inference.worker.runtime import EXIT_ENGINE_DEAD
from tests.faults.ledger import Ledger
from tests.faults.pool import HANG, SILENT
from tests.faults.site import Site, wait_until

pytestmark = pytest.mark.live

PROMPTS = [[41, 50, 60], [42, 50, 60], [43, 50, 60]]
TOKENS = 40


def tokens_of(site: Site, prompts: list[list[int]]) -> list[list[int]]:
    """Stream the prompts and return the tokens."""
    return rest_of(sent(site, prompts))


def sent(site: Site, prompts: list[list[int]]) -> Ledger:
    """Begin to stream the prompts."""
    ledger = Ledger(site)
    for prompt in prompts:
        ledger.send(prompt, TOKENS)
    return ledger


def rest_of(ledger: Ledger) -> list[list[int]]:
    """Return all tokens; every stream has to end as if nothing had happened."""
    ledger.wait(110)
    ledger.check(lambda entries: [entry.tokens for entry in entries])
    return [entry.tokens for entry in ledger.entries]


class Watch:
    """Measures, in a thread, the seconds until a worker isn't ready, and until one has ended."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.late_s: float | None = None
        self.ended_s = 0.0
        self._thread.start()

    def _run(self) -> None:
        while not self._site.deaths:
            if self.late_s is None and any(state.is_late for state in self._site.ready_workers()):
                self.late_s = time.monotonic() - self._started
            time.sleep(0.05)
        self.ended_s = time.monotonic() - self._started

    def join(self) -> None:
        self._thread.join(5)
        assert not self._thread.is_alive(), "no worker has ended"


@pytest.mark.fault(
    "F33",
    provoked="a step of one engine hangs for a minute; the thread of another one ends silently; beside three streams",
    holds="a hung worker isn't ready within 10 s; its process is replaced within 20 s, the other one's at once; every "
    "stream goes on, token for token",
)
def test_f33_an_engine_that_hangs_or_ends_is_replaced(site):
    alone = tokens_of(site, PROMPTS)
    for culprit, limit_s in ((SILENT, 10), (HANG, 20)):
        site.deaths.clear()
        ledger = sent(site, [culprit, *PROMPTS])
        first = ledger.entries[0]
        wait_until(lambda entry=first: entry.tokens, 30, "the first of the tokens after which the engine stands still")
        watch = Watch(site)
        found = rest_of(ledger)
        watch.join()
        assert found[1:] == alone
        assert len(found[0]) == TOKENS
        assert [code for _, code in site.deaths] == [EXIT_ENGINE_DEAD]
        assert watch.ended_s < limit_s
        assert (watch.late_s is not None and watch.late_s < 10) == (culprit is HANG)
        wait_until(lambda: len(site.ready_workers()) == 2, 120, "the load of the model by both workers")
    assert all(httpx.get(f"{url}/readyz").status_code == 200 for url in site.urls)
