"""Watch: memory of processes while requests go through them, and whether any of them ends."""

from __future__ import annotations

from collections.abc import Callable

from bench.child import status_bytes
from bench.soak.verdict import Phase

SAMPLES = 200
"""Samples of a phase, about."""


class Watch:
    """Samples the processes of a phase.

    Args:
        phase: Gets the samples and the deaths.
        every: Requests between two samples.
    """

    def __init__(self, phase: Phase, processes: Callable[[], dict[str, int]], every: int) -> None:
        self._phase = phase
        self._processes = processes
        self._every = every
        self._pids = processes()
        self._next = 0
        phase.memory |= {name: [] for name in self._pids}

    def look(self, num_requests: int, *, force: bool = False) -> None:
        if num_requests < self._next and not force:
            return
        self._next = num_requests + self._every
        now = self._processes()
        for name, pid in self._pids.items():
            if now.get(name) != pid:
                self._phase.deaths.append(f"{name} (after {num_requests:,} requests)")
            try:
                size = status_bytes("RssAnon", now.get(name, pid))
            except (OSError, RuntimeError):
                continue
            self._phase.memory[name].append((num_requests, size))
        self._pids |= now
