"""States of models and workers, as the workers' heartbeats report them. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from inference.values.queue_place import StartOutlook

ModelStatus = Literal["unloaded", "loading", "ready", "failed"]
_ORDER: Mapping[str, int] = {"unloaded": 0, "failed": 1, "loading": 2, "ready": 3}


@dataclass(frozen=True, slots=True)
class ResidentAdapter:
    """One LoRA adapter in the memory of one worker, or of several.

    Attributes:
        adapter_id: Primary key of the adapter.
        memory_bytes: Memory that it takes.
        num_requests: Running requests that go through it.
        last_used_at: Unix time at which a request or an order named it last.
        is_pinned: It was loaded ahead of its requests, and stays until it is unloaded.
        num_workers: Workers that hold it.
    """

    adapter_id: str
    memory_bytes: int = 0
    num_requests: int = 0
    last_used_at: float = 0.0
    is_pinned: bool = False
    num_workers: int = 1

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> ResidentAdapter:
        """Read ``asdict``'s form; members that this version doesn't know are left out."""
        return cls(**_known(cls, payload))


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """One model on one worker.

    Attributes:
        checkpoint_id: Primary key of the checkpoint.
        status: ``loading`` or ``ready``.
        progress: Share of the load that is done, 0 to 1.
        stage: What the load is doing, for people.
        memory_bytes: Weights and state memory on the device.
        num_running: Requests in the engine, and on their way into it.
        num_waiting: Requests that wait for the load, or for a slot.
        last_used_at: Unix time of the last request.
        tokens_per_s: Generated tokens per second over the last seconds.
        max_model_len: Longest prompt plus output in tokens; 0 while loading.
        keep_alive_s: Seconds without a request after which it is unloaded; -1: never.
        stats: The engine's own counters.
        pinned: It stays until it is asked to go.
        load_s: Seconds that its load took.
        num_unprepared: Requests that wait for a place in the engine, or for a thread that tokenises their prompts.
        num_preparing: Requests whose prompts are tokenised now.
        states_bytes: Part of ``memory_bytes`` that is reserved for states of requests; 0 while loading.
        adapter_bytes: Part of ``memory_bytes`` that is reserved for adapters; 0 while loading.
        outlook: When further requests could start.
        adapters: The LoRA adapters in memory.
    """

    checkpoint_id: str
    status: Literal["loading", "ready"]
    progress: float = 0.0
    stage: str = ""
    memory_bytes: int = 0
    num_running: int = 0
    num_waiting: int = 0
    last_used_at: float = 0.0
    tokens_per_s: float = 0.0
    max_model_len: int = 0
    keep_alive_s: float = -1
    stats: Mapping[str, Any] = field(default_factory=dict)
    pinned: bool = False
    load_s: float = 0.0
    num_unprepared: int = 0
    num_preparing: int = 0
    states_bytes: int = 0
    adapter_bytes: int = 0
    outlook: StartOutlook = field(default_factory=StartOutlook)
    adapters: tuple[ResidentAdapter, ...] = ()


@dataclass(frozen=True, slots=True)
class Departure:
    """A model that was unloaded.

    Attributes:
        reason: For people; a sentence's end if ``evicted_for`` is its beginning.
        resident_s: How long it was there.
        at: Unix time.
        evicted_for: Served name of the model that needed its memory, if one did.
    """

    checkpoint_id: str
    reason: str
    memory_bytes: int = 0
    resident_s: float = 0.0
    at: float = 0.0
    evicted_for: str = ""

    def words(self, names: frozenset[str] | None = None) -> str:
        """Why it was unloaded; a model that isn't among ``names`` (None: all) is not named."""
        if not self.evicted_for:
            return self.reason
        is_named = names is None or self.evicted_for in names
        return f"{self.evicted_for if is_named else 'another model'} {self.reason}"


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """What a worker has read from one energy counter since it has started.

    Attributes:
        counter: The counter's identity: workers that read the same one report the same.
        device: What people call the counted device.
        source: ``rapl`` (a processor) or ``nvml`` (an NVIDIA device).
        joules: All that the device has used.
        work_joules: Of it, what it has used while models of this worker had work, by checkpoint id.
        watts: Mean over the last seconds.
        hour_watts: Mean over the last hour, or since the start.
    """

    counter: str
    device: str
    source: str
    joules: float = 0.0
    work_joules: Mapping[str, float] = field(default_factory=dict)
    watts: float = 0.0
    hour_watts: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceEnergy:
    """What one device has used since it was first counted, and of it while models had work."""

    device: str
    source: str
    joules: float
    work_joules: float


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker, as its last heartbeat reported it.

    Attributes:
        heartbeat_at: Unix time (the worker's clock) of the heartbeat.
        step_age_s: Age of the oldest engine's last step while it has work; 0 when idle. A large age means
            that a forward pass hangs.
        is_late: A step takes longer than steps of this engine may take, so that the worker counts as hung.
        draining: The worker is stopping and takes nothing new.
        departures: The last models that were unloaded, oldest first.
        energy: Readings of the energy counters of its device.
        energy_notice: Why there are none, for people; empty if there are some.
    """

    worker_id: str
    pid: int = 0
    host: str = ""
    device: str = ""
    started_at: float = 0.0
    heartbeat_at: float = 0.0
    memory_budget_bytes: int = 0
    memory_used_bytes: int = 0
    num_active: int = 0
    max_active: int = 0
    step_age_s: float = 0.0
    is_late: bool = False
    draining: bool = False
    models: tuple[ResidentModel, ...] = ()
    departures: tuple[Departure, ...] = ()
    energy: tuple[EnergyReading, ...] = ()
    energy_notice: str = ""

    @property
    def num_free(self) -> int:
        """Requests that the worker would still take."""
        return 0 if self.draining else max(0, self.max_active - self.num_active)

    def to_json(self) -> str:
        """A form that ``from_json`` reads."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, payload: str | bytes) -> WorkerState:
        """Read ``to_json``'s form; members that this version doesn't know are left out."""
        values = json.loads(payload)
        models = tuple(_resident_model(item) for item in values.pop("models", ()))
        departures = tuple(Departure(**_known(Departure, item)) for item in values.pop("departures", ()))
        energy = tuple(EnergyReading(**_known(EnergyReading, item)) for item in values.pop("energy", ()))
        return cls(models=models, departures=departures, energy=energy, **_known(cls, values))


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model over all workers.

    ``status`` is the best of the workers'; ``failed`` when none holds it and its last load went wrong, with ``error``
    as ``BlazrError.to_dict`` made it. Counts and rates are sums, ``progress`` is the furthest load's, ``adapters`` are
    those in the memory of some worker.
    """

    checkpoint_id: str
    status: ModelStatus = "unloaded"
    progress: float = 0.0
    stage: str = ""
    error: Mapping[str, Any] | None = None
    workers: tuple[str, ...] = ()
    memory_bytes: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_queued: int = 0
    last_used_at: float = 0.0
    tokens_per_s: float = 0.0
    max_model_len: int = 0
    states_bytes: int = 0
    adapter_bytes: int = 0
    adapters: tuple[ResidentAdapter, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """What people are shown of it, without the error: each API has a form of its own for errors."""
        return {
            "status": self.status,
            "progress": self.progress,
            "stage": self.stage,
            "workers": list(self.workers),
            "memory_bytes": self.memory_bytes,
            "states_bytes": self.states_bytes,
            "adapter_bytes": self.adapter_bytes,
            "num_running": self.num_running,
            "num_waiting": self.num_waiting,
            "num_queued": self.num_queued,
            "tokens_per_s": self.tokens_per_s,
            "last_used_at": self.last_used_at,
        }


def merge_models(workers: Iterable[WorkerState]) -> dict[str, ModelState]:
    """States of all models that some worker holds, by checkpoint id."""
    merged: dict[str, ModelState] = {}
    for worker in workers:
        for model in worker.models:
            seen = merged.get(model.checkpoint_id, ModelState(model.checkpoint_id))
            ahead = (_ORDER[model.status], model.progress) >= (_ORDER[seen.status], seen.progress)
            merged[model.checkpoint_id] = ModelState(
                checkpoint_id=model.checkpoint_id,
                status=model.status if ahead else seen.status,
                progress=model.progress if ahead else seen.progress,
                stage=model.stage if ahead else seen.stage,
                workers=(*seen.workers, worker.worker_id),
                memory_bytes=seen.memory_bytes + model.memory_bytes,
                num_running=seen.num_running + model.num_running,
                num_waiting=seen.num_waiting + model.num_waiting,
                last_used_at=max(seen.last_used_at, model.last_used_at),
                tokens_per_s=seen.tokens_per_s + model.tokens_per_s,
                max_model_len=max(seen.max_model_len, model.max_model_len),
                states_bytes=seen.states_bytes + model.states_bytes,
                adapter_bytes=seen.adapter_bytes + model.adapter_bytes,
                adapters=merge_adapters((*seen.adapters, *model.adapters)),
            )
    return merged


def merge_adapters(adapters: Iterable[ResidentAdapter]) -> tuple[ResidentAdapter, ...]:
    """Put what several workers hold together, by adapter: bytes and counts are sums."""
    merged: dict[str, ResidentAdapter] = {}
    for item in adapters:
        seen = merged.get(item.adapter_id)
        merged[item.adapter_id] = (
            item
            if seen is None
            else ResidentAdapter(
                item.adapter_id,
                memory_bytes=seen.memory_bytes + item.memory_bytes,
                num_requests=seen.num_requests + item.num_requests,
                last_used_at=max(seen.last_used_at, item.last_used_at),
                is_pinned=seen.is_pinned or item.is_pinned,
                num_workers=seen.num_workers + item.num_workers,
            )
        )
    return tuple(merged.values())


def departures_of(
    workers: Iterable[WorkerState], checkpoint_id: str, names: frozenset[str] | None = None
) -> list[dict[str, Any]]:
    """When and why a model was unloaded, the last few times, oldest first; plain values.

    Args:
        workers: All workers.
        checkpoint_id: The model.
        names: Served names of other models that may be named; None: all.
    """
    found = [
        {
            "worker_id": worker.worker_id,
            "reason": item.words(names),
            "memory_bytes": item.memory_bytes,
            "resident_s": item.resident_s,
            "at": item.at,
        }
        for worker in workers
        for item in worker.departures
        if item.checkpoint_id == checkpoint_id
    ]
    return sorted(found, key=lambda item: float(item["at"]))


def _resident_model(values: Mapping[str, Any]) -> ResidentModel:
    known = _known(ResidentModel, values)
    adapters = tuple(map(ResidentAdapter.from_dict, known.get("adapters", ())))
    outlook = StartOutlook.from_dict(known.get("outlook", {}))
    return ResidentModel(**{**known, "outlook": outlook, "adapters": adapters})


def _known(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(cls)}
    return {key: value for key, value in values.items() if key in names}
