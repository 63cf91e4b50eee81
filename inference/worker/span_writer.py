"""Define the worker's thread that stores how requests went in each minute, quarter, hour and day (``UsageSpan``).

All workers run it; the first of the live ones by name samples and writes, so that a span has one writer. If that one
is lost the next one goes on, with the spans that are missing. Two writers for a moment do no harm: rows that are there
stay as they are. The same worker sums the energy that all of them have read, and divides it among the callers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.utils import timezone

from inference.errors import BlazrError
from inference.jobs.turn_thread import TurnThread
from inference.records.energy_days import IDLE, energy_add, energy_divide, last_energy_day
from inference.records.span_rows import spans_write
from inference.records.usage_spans import MINUTE, PERIODS, Load, kept_begins, missing_begins, spans_sweep
from inference.transport.worker_states import model_states_sync, worker_states_sync
from inference.values.states import ModelState
from inference.worker.energy_sums import EnergySums
from models_registry.adapter_names import full_name
from models_registry.models import Adapter, Checkpoint

logger = logging.getLogger(__name__)

SAMPLE_S = 5.0
"""As long as the window over which workers count their tokens per second."""


@dataclass(slots=True)
class _Samples:
    """Sums of what the workers reported in one minute, by served name."""

    number: int = 0
    tokens_per_s: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)

    def add(self, states: Mapping[str, ModelState]) -> None:
        """Add one sample."""
        self.number += 1
        for name, state in states.items():
            self.tokens_per_s[name] += state.tokens_per_s  # type: ignore[assignment]
            self.waiting[name] += state.num_waiting + state.num_queued

    def means(self) -> dict[str, Load]:
        """Return the means; a model that is missing in a sample did nothing then."""
        return {
            name: Load(self.tokens_per_s[name] / self.number, self.waiting[name] / self.number)
            for name in self.tokens_per_s
        }


class SpanWriter(TurnThread):
    """Samples the workers' reports every few seconds, and stores the spans that have ended.

    Args:
        owner: The worker's id.
    """

    def __init__(self, *, owner: str) -> None:
        super().__init__("usage-spans", "the spans of usage")
        self._owner = owner
        self._is_writer = False
        self._samples: dict[datetime, _Samples] = {}
        self._done: set[tuple[int, datetime]] = set()
        self._energy = EnergySums()
        self._energy_at: datetime | None = None

    def _pause_s(self) -> float:
        return SAMPLE_S

    def turn(self) -> None:
        now = timezone.now()
        self._sample(now)
        if self._is_writer:
            self._write(now)
        if self._energy_at is None or abs((now - self._energy_at).total_seconds()) >= MINUTE:
            self._energy_at = now
            self._write_energy(now)

    def _end(self) -> None:
        self._write_energy(timezone.now())

    def _sample(self, now: datetime) -> None:
        try:
            workers = worker_states_sync()
            self._is_writer = bool(workers) and min(workers) == self._owner
            if not self._is_writer:
                self._samples.clear()
                self._done.clear()
                self._energy.restart()
                return
            states = model_states_sync()
        except BlazrError as error:
            logger.debug("the workers' reports can't be read: %s", error.message)
            return
        rows = Checkpoint.objects.filter(pk__in=states).values_list("pk", "served_model_name") if states else ()
        self._energy.sample(workers.values(), now)
        minute = datetime.fromtimestamp(now.timestamp() // MINUTE * MINUTE, UTC)
        self._samples.setdefault(minute, _Samples()).add({name: states[str(key)] for key, name in rows})

    def _write_energy(self, now: datetime) -> None:
        """Store the energy since the last time, and divide today's and the last days'."""
        if not self._energy.pending:
            return
        models = {key.model for key in self._energy.pending if key.model != IDLE}
        rows = Checkpoint.objects.filter(pk__in=models).values_list("pk", "served_model_name") if models else ()
        last = last_energy_day()
        energy_add(self._energy.by_name({str(key): name for key, name in rows}))
        self._energy.pending.clear()
        today = now.astimezone(UTC).date()
        tagged = Checkpoint.objects.filter(served_model_name__contains=":").values_list("served_model_name", flat=True)
        names = Adapter.objects.values_list("base__served_model_name", "name")
        adapters, checkpoints = {full_name(*both) for both in names}, set(tagged)
        for day in sorted({last or today, today - timedelta(days=1), today}):
            energy_divide(day, adapters=adapters, checkpoints=checkpoints)

    def _write(self, now: datetime) -> None:
        """Store the spans that are due, the shortest first: quarters are the means of their minutes."""
        kept = {(length_s, begin) for length_s in PERIODS for begin in kept_begins(now, length_s)}
        due = kept - self._done
        if not due:
            return
        for length_s in sorted({length_s for length_s, _ in due}):
            for begin in missing_begins(now, length_s):
                if (length_s, begin) not in self._done and not self._closing:
                    samples = self._samples.get(begin) if length_s == MINUTE else None
                    spans_write(begin=begin, length_s=length_s, loads=None if samples is None else samples.means())
        self._done = kept
        oldest = now - timedelta(seconds=2 * MINUTE)
        self._samples = {begin: item for begin, item in self._samples.items() if begin > oldest}
        spans_sweep(now)
