"""Where a waiting request stands: its position, what it waits for, and an estimate of the wait. Standard library only.

A worker reports, per model, who waits there and when its places are expected to be free (``StartOutlook``). The k-th
waiting request starts when the k-th place is free; a place that is taken again is free after a mean request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

QUEUE_EVENT = "blazr.queue"
"""Name of the events of a stream that say where its request stands."""
MAX_LISTED = 64
"""Most waiting requests, and places, that a worker lists for a model."""
MAX_AGE_S = 3.0
"""Seconds by which an outlook is brought forward at most: the clock of another machine may be wrong."""

WaitsFor = Literal["capacity", "load", "swap", "worker"]


@dataclass(frozen=True, slots=True)
class StartOutlook:
    """When further requests of a model could start at a worker.

    Attributes:
        waiting_ids: Requests that wait at the worker, in the order of their starts.
        num_places: Requests of clients that the engine holds.
        num_free: Requests that could start at once.
        free_in_s: Seconds until each taken place is expected to be free, ascending.
        request_s: Mean seconds for which a request takes a place; 0: unknown.
        load_left_s: Seconds until the model is expected to be loaded; None: it is loaded, or nobody knows.
        evicts: Name of the model that is unloaded for this one; empty: none.
    """

    waiting_ids: tuple[str, ...] = ()
    num_places: int = 0
    num_free: int = 0
    free_in_s: tuple[float, ...] = ()
    request_s: float = 0.0
    load_left_s: float | None = None
    evicts: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StartOutlook:
        """Read the form of ``dataclasses.asdict``; members that this version doesn't know are left out."""
        known = {item.name for item in fields(cls)}
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**{name: value for name, value in found.items() if name in known})


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where one waiting request stands.

    Attributes:
        position: 1 for the request that starts next.
        waits_for: ``capacity``: a place in the engine. ``load``: its model is loaded. ``swap``: another model is
            unloaded first. ``worker``: no worker is alive.
        estimated_s: Expected seconds until it starts; None: nothing is known yet.
        load_left_s: Expected seconds of the load alone; None: there is no load, or nothing is known yet.
        evicts: Name of the model that is unloaded; empty: none.
    """

    position: int
    waits_for: WaitsFor
    estimated_s: float | None = None
    load_left_s: float | None = None
    evicts: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with times in hundredths of a second."""
        values = asdict(self)
        for name in ("estimated_s", "load_left_s"):
            values[name] = None if values[name] is None else round(values[name], 2)
        return {**values, "evicts": self.evicts or None}


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model at one worker.

    Attributes:
        is_ready: Whether requests can start there; otherwise it is being loaded, or unloaded before its next load.
        age_s: Seconds since the worker reported it.
    """

    is_ready: bool
    outlook: StartOutlook
    age_s: float = 0.0


class QueuePlaces:
    """Where the requests of one model stand that have not started; a lookup costs the same however many wait.

    Args:
        held: The model at each worker that has it.
        queued_ids: Requests of the model that no worker has taken, in the order of taking.
        num_taken: Open requests of the model that workers have taken, more of which may wait than they have said.
        has_workers: Whether any worker is alive.
    """

    def __init__(
        self, held: Iterable[HeldModel], queued_ids: Sequence[str], *, num_taken: int = 0, has_workers: bool = True
    ) -> None:
        self._models = list(held)
        self._num_taken = num_taken
        self._has_workers = has_workers
        self._queued = {request_id: number for number, request_id in reversed(list(enumerate(queued_ids)))}
        self._listed = {
            request_id: (model, number)
            for model in reversed(self._models)
            for number, request_id in enumerate(model.outlook.waiting_ids)
        }
        self._num_listed = sum(len(model.outlook.waiting_ids) for model in self._models)
        self._num_places = sum(model.outlook.num_places for model in self._models)
        self._any_ready = any(model.is_ready for model in self._models)

    def of(self, request_id: str) -> QueuePlace | None:
        """Return where a request stands; None: a worker has it and hasn't said so yet."""
        models, own = self._models, self._listed.get(request_id)
        if own is not None:
            models, num_before = [own[0]], own[1]
        else:
            queued = self._queued.get(request_id)
            if queued is None and self._any_ready:
                return None
            others_taken = self._num_taken - (queued is None)
            num_before = max(self._num_listed, others_taken - self._num_places) + (queued or 0)
        position = num_before + 1
        if not self._has_workers:
            return QueuePlace(position, "worker")
        ready = [model for model in models if model.is_ready]
        if ready:
            return QueuePlace(position, "capacity", start_in_s(num_before, ready))
        loads = [model for model in models if model.outlook.load_left_s is not None]
        first = min(loads, key=_load_left_now_s, default=models[0] if models else None)
        if first is None:
            return QueuePlace(position, "load")
        left_s = _load_left_now_s(first) if loads else None
        evicts = first.outlook.evicts
        return QueuePlace(position, "swap" if evicts else "load", left_s, left_s, evicts)


def start_in_s(num_before: int, models: Sequence[HeldModel]) -> float | None:
    """Return the expected seconds until a request starts behind ``num_before`` others; None: nothing is known."""
    num_free = sum(model.outlook.num_free for model in models)
    if num_before < num_free:
        return 0.0
    places = [
        max(0.0, seconds - min(model.age_s, MAX_AGE_S)) for model in models for seconds in model.outlook.free_in_s
    ]
    known = [model.outlook.request_s for model in models if model.outlook.request_s > 0]
    request_s = sum(known) / len(known) if known else 0.0
    if num_free and request_s:
        places += [request_s] * num_free  # those before it take the free ones
    if not places:
        return None
    return _next_free_s(sorted(places), num_before - num_free, request_s)


def _next_free_s(places: Sequence[float], num_before: int, request_s: float) -> float | None:
    """Return when a place is free for the request behind ``num_before`` others; the work grows with the places only.

    Args:
        places: Seconds until each place is free, ascending.
        request_s: Seconds for which each request takes its place; 0: unknown.
    """
    if not request_s:
        return places[num_before] if num_before < len(places) else None
    # Cut the time into rounds of ``request_s``: each place is taken once in each round, from its first one on.
    first_rounds = [int((place - places[0]) // request_s) for place in places]
    num_places = 1
    while num_places < len(places):
        num_starts = num_places * (first_rounds[num_places] - first_rounds[num_places - 1])
        if num_before < num_starts:
            break
        num_before -= num_starts
        num_places += 1
    rounds, number = divmod(num_before, num_places)
    current = first_rounds[num_places - 1] + rounds
    taken = zip(places[:num_places], first_rounds, strict=False)
    return sorted(place + (current - first) * request_s for place, first in taken)[number]


def _load_left_now_s(model: HeldModel) -> float:
    return max(0.0, (model.outlook.load_left_s or 0.0) - min(model.age_s, MAX_AGE_S))
