"""Sum what the workers read from energy counters by day and model, each counter once, until it is stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from inference.records.energy_days import IDLE, EnergyKey
from inference.transport import keys as redis_keys
from inference.values.states import EnergyReading, WorkerState

MAX_GAP_S = float(redis_keys.HEARTBEAT_EXPIRE_S)
"""After a longer time without a sample another worker may have summed: what was used meanwhile isn't counted."""


class _Process(NamedTuple):
    """One process of a worker; a process that takes its name begins at 0 again."""

    worker_id: str
    started_at: float


class EnergySums:
    """Take the workers' states every few seconds, and sum by how much their readings have grown.

    Workers on one device read the same counter. Its joules are those that the first of them by name reports. What was
    used while models had work is the sum of what all of them report, and at most the counter's joules.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, _Process], EnergyReading] = {}
        self._at: datetime | None = None
        self.pending: defaultdict[EnergyKey, float] = defaultdict(float)
        """Joules that aren't stored yet; the model of a key is a checkpoint's id."""

    def sample(self, workers: Iterable[WorkerState], now: datetime) -> None:
        """Add what live workers have used since the last sample to the day of ``now``, by checkpoint id."""
        if self._at is not None and not 0 <= (now - self._at).total_seconds() <= MAX_GAP_S:
            self._before.clear()
        self._at = now
        counters: dict[str, dict[_Process, EnergyReading]] = {}
        for worker in workers:
            for reading in worker.energy:
                process = _Process(worker.worker_id, worker.started_at)
                counters.setdefault(reading.counter, {})[process] = reading
        for counter, readings in counters.items():
            known = {
                process: (before, reading)
                for process, reading in sorted(readings.items())
                if (before := self._before.get((counter, process))) is not None and before.joules <= reading.joules
            }
            if known:
                before, reading = next(iter(known.values()))
                work = _grown(known.values())
                self._add(reading, reading.joules - before.joules, work, now)
        self._before = {
            (counter, process): reading
            for counter, readings in counters.items()
            for process, reading in readings.items()
        }

    def _add(self, reading: EnergyReading, joules: float, work: Mapping[str, float], now: datetime) -> None:
        total = sum(work.values())
        scale = min(1.0, joules / total) if total else 0.0
        day = now.astimezone(UTC).date()
        parts = {model: part * scale for model, part in work.items()}
        for model, part in [*parts.items(), (IDLE, max(0.0, joules - total))]:
            if part > 0:
                self.pending[EnergyKey(day, reading.device[:128], reading.source[:8], model[:128])] += part

    def restart(self) -> None:
        """Forget the readings: another worker sums from here on."""
        self._before.clear()
        self._at = None

    def by_name(self, names: Mapping[str, str]) -> dict[EnergyKey, float]:
        """Return the sums with served names in place of checkpoint ids."""
        found: defaultdict[EnergyKey, float] = defaultdict(float)
        for key, joules in self.pending.items():
            found[key._replace(model=names.get(key.model, key.model))] += joules
        return found


def _grown(known: Iterable[tuple[EnergyReading, EnergyReading]]) -> dict[str, float]:
    """Return by how much the joules of each model have grown."""
    found: defaultdict[str, float] = defaultdict(float)
    for before, reading in known:
        for checkpoint_id, joules in reading.work_joules.items():
            found[checkpoint_id] += max(0.0, joules - before.work_joules.get(checkpoint_id, 0.0))
    return found
