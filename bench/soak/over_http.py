"""Drive a server over HTTP with many clients at once."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from bench.soak.client import Outcome, SoakClient
from bench.soak.requests import SoakRequest
from bench.soak.server import SoakServer
from bench.soak.verdict import Phase
from bench.soak.watch import SAMPLES, Watch

LOOK_S = 0.25
MAX_FAILURES = 200
"""A phase with so many failed requests ends."""


class HttpPhase:
    """Sends the requests of one phase.

    Args:
        make: Makes the request of a number.
        repeats: Texts of the repeated requests, by their number; shared by all phases.
    """

    def __init__(
        self, server: SoakServer, phase: Phase, make: Callable[[int], SoakRequest], repeats: dict[int, str]
    ) -> None:
        self._server = server
        self._phase = phase
        self._make = make
        self._repeats = repeats
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._total = 0
        self._deadline = float("inf")

    def run(self, total: int, clients: int, max_seconds: float | None, show: Callable[[int], None]) -> None:
        """Send ``total`` requests, or as many as there is time for.

        Args:
            clients: Requests at the same time.
            max_seconds: None: as long as it takes.
            show: Gets the number of requests that have ended, a few times a second.
        """
        started = time.monotonic()
        self._total = total
        if max_seconds is not None:
            self._deadline = started + max_seconds
        watch = Watch(self._phase, self._server.processes, max(1, total // SAMPLES) if max_seconds is None else 50)
        threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            next(thread for thread in threads if thread.is_alive()).join(LOOK_S)
            watch.look(self._phase.num_requests)
            show(self._phase.num_requests)
        watch.look(self._phase.num_requests, force=True)
        self._phase.seconds = time.monotonic() - started

    def _client(self) -> None:
        client = SoakClient(self._server.port)
        while len(self._phase.failures) < MAX_FAILURES and time.monotonic() < self._deadline:
            number = next(self._numbers)
            if number >= self._total:
                break
            request = self._make(number)
            outcome = client.send(request)
            with self._lock:
                self._record(request, outcome)
        client.close()

    def _record(self, request: SoakRequest, outcome: Outcome) -> None:
        phase = self._phase
        phase.num_requests += 1
        phase.num_cancelled += outcome.cancelled
        if outcome.error:
            phase.failures.append(outcome.error)
        elif request.repeat is not None:
            before = self._repeats.setdefault(request.repeat, outcome.text)
            if before != outcome.text:
                phase.changed_repeats.append(f"{request.path}: {outcome.text[:80]!r} was {before[:80]!r}")
