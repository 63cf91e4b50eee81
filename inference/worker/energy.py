"""Measure the energy that the worker's device uses, in all and while its models have work.

A thread of its own reads the counters once a second, because a driver may take its time. Nothing is started where there
is no counter.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from inference.host.nvml import LIBRARY, nvml_counters
from inference.host.rapl import POWERCAP, rapl_counters
from inference.values.states import EnergyReading

logger = logging.getLogger(__name__)

TICK_S = 1.0
NOW_TICKS = 5
"""Ticks over which the power of this moment is a mean."""
HOUR_S, POINT_S = 3600.0, 60.0
MAX_NAME_CHARS = 64
"""Longest part of a device's name that is its host's."""


class EnergyCounter(Protocol):
    """A counter of the machine; see ``RaplCounter`` and ``NvmlCounter``."""

    identity: str
    name: str
    source: str

    def read(self) -> float:
        """Return the joules since the counter was opened; raise ``OSError`` if it can't be read."""
        ...


class EnergyCounters(NamedTuple):
    """The counters of a device; the notice says why there are none."""

    counters: Sequence[EnergyCounter] = ()
    notice: str = ""


NO_COUNTERS = EnergyCounters()


class Works(Protocol):
    """The part of ``inference.engine.loop.EngineLoop`` that is measured."""

    @property
    def work_s(self) -> float:
        """Seconds so far in which the engine had work."""
        ...


class EnergyMeter:
    """Read the counters in a thread, and divide what they count by whether models had work.

    Of each second's joules a model gets the share of the second in which its engine had work. If models had work at the
    same time, so that their shares are more than the whole, each gets its part of the whole.

    Args:
        found: The counters, or why there are none.
        loops: Returns the engines' loops, each with its checkpoint's id.
        clock: Seconds that only grow.

    Attributes:
        readings: What was read last; replaced as a whole, so that any thread may read it.
        notice: Why there are no counters, for people.
    """

    def __init__(
        self,
        found: EnergyCounters,
        loops: Callable[[], Iterable[tuple[str, Works]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loops = loops
        self._clock = clock
        self._host = os.uname().nodename[:MAX_NAME_CHARS]
        self._devices = [_Device(counter, clock()) for counter in found.counters]
        self._at = clock()
        self._worked_s: dict[Works, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)
        self.notice = found.notice
        self.readings: tuple[EnergyReading, ...] = ()

    def start(self) -> None:
        """Start the thread, if there is a counter; call once."""
        if self._devices:
            self._thread.start()

    def stop(self) -> None:
        """End the thread after a last reading."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(TICK_S)
            try:
                self.tick()
            except Exception:
                logger.exception("the energy could not be measured")

    def tick(self) -> None:
        """Read all counters once."""
        shares = self._shares()
        now = self._clock()
        for device in self._devices:
            device.read(shares, now)
        self.readings = tuple(device.reading(self._host) for device in self._devices)

    def _shares(self) -> dict[str, float]:
        """Return the share of the time since the last tick in which each model had work, all together at most 1."""
        now = self._clock()
        passed_s, self._at = now - self._at, now
        worked_s = {loop: (model, loop.work_s) for model, loop in self._loops()}
        shares: defaultdict[str, float] = defaultdict(float)
        for loop, (model, seconds) in worked_s.items():
            shares[model] += seconds - self._worked_s.get(loop, 0.0)
        self._worked_s = {loop: seconds for loop, (_, seconds) in worked_s.items()}
        whole_s = max(passed_s, sum(shares.values()))
        return {model: seconds / whole_s for model, seconds in shares.items() if seconds > 0}


class _Device:
    """One counter, with what was read of it."""

    def __init__(self, counter: EnergyCounter, now: float) -> None:
        self._counter = counter
        self._joules = 0.0
        self._work_joules: defaultdict[str, float] = defaultdict(float)
        self._recent: deque[tuple[float, float]] = deque([(now, 0.0)], maxlen=NOW_TICKS + 1)
        self._minutes: deque[tuple[float, float]] = deque([(now, 0.0)], maxlen=int(HOUR_S / POINT_S) + 1)
        self._has_failed = False

    def read(self, shares: dict[str, float], now: float) -> None:
        """Read the counter; what can't be read now is part of the next reading."""
        try:
            joules = self._counter.read()
        except OSError as error:
            if not self._has_failed:
                logger.warning("the energy counter %s can't be read: %s", self._counter.name, error)
            self._has_failed = True
            return
        self._has_failed = False
        used, self._joules = joules - self._joules, joules
        for model, share in shares.items():
            self._work_joules[model] += used * share
        self._recent.append((now, joules))
        if now - self._minutes[-1][0] >= POINT_S:
            self._minutes.append((now, joules))

    def reading(self, host: str) -> EnergyReading:
        """Return what was read so far."""
        return EnergyReading(
            counter=self._counter.identity,
            device=f"{host}/{self._counter.name}",
            source=self._counter.source,
            joules=self._joules,
            work_joules=dict(self._work_joules),
            watts=self._power(self._recent[0]),
            hour_watts=self._power(self._minutes[0]),
        )

    def _power(self, since: tuple[float, float]) -> float:
        at, joules = self._recent[-1]
        return (joules - since[1]) / (at - since[0]) if at > since[0] else 0.0


def energy_counters(device: str, *, powercap: Path = POWERCAP, library: str = LIBRARY) -> EnergyCounters:
    """Return the energy counters of a worker's device.

    Args:
        device: ``cpu`` or ``cuda:N``.
        powercap: The kernel's directory of processors' counters.
        library: Name or path of NVML.
    """
    if device.startswith("cuda"):
        import torch  # what imports this module needn't have it

        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return EnergyCounters(*nvml_counters(uuid, library))
    if device.startswith("cpu"):
        return EnergyCounters(*rapl_counters(powercap))
    return EnergyCounters((), f"The device {device} has no energy counter that blazr reads.")
