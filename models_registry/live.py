"""Read the workers' state for pages, and send load and unload requests.

Without Redis the state is "unknown", never an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync

from inference.errors import BlazrError, Unavailable
from inference.transport import queue as broker
from inference.transport.control import forget_adapter_sync, request_unload_sync
from inference.transport.questions import adapter_order, fits_somewhere, model_fit
from inference.transport.worker_states import model_states_sync, worker_states_sync
from inference.values.states import ModelState, ResidentAdapter, WorkerState, departures_of, merge_adapters
from models_registry.models import Checkpoint


@dataclass(frozen=True, slots=True)
class Live:
    """The workers' state at one moment.

    Attributes:
        notice: Why the state could not be read; empty otherwise.
    """

    models: Mapping[str, ModelState]
    workers: tuple[WorkerState, ...]
    notice: str = ""

    def of(self, checkpoint: Checkpoint) -> dict[str, Any]:
        state = self.models.get(str(checkpoint.pk)) or ModelState(str(checkpoint.pk))
        shown = state.shown() | {"error": str((state.error or {}).get("message", ""))}
        shown["departures"] = departures_of(self.workers, state.checkpoint_id)
        return shown | {"status": "unknown"} if self.notice else shown

    def adapters(self) -> dict[str, ResidentAdapter] | None:
        """Return the LoRA adapters in memory by id; None: the state could not be read."""
        if self.notice:
            return None
        return {item.adapter_id: item for state in self.models.values() for item in state.adapters}

    def worker_rows(self, checkpoints: Iterable[Checkpoint]) -> list[dict[str, Any]]:
        names = {str(row.pk): row.served_model_name for row in checkpoints}
        now = time.time()
        return [
            {
                "worker_id": worker.worker_id,
                "started_at": worker.started_at,
                "device": worker.device,
                "heartbeat_age_s": max(0.0, now - worker.heartbeat_at),
                "step_age_s": worker.step_age_s,
                "is_late": worker.is_late,
                "memory_used_bytes": worker.memory_used_bytes,
                "memory_budget_bytes": worker.memory_budget_bytes,
                "states_bytes": sum(model.states_bytes for model in worker.models),
                "adapter_bytes": sum(model.adapter_bytes for model in worker.models),
                "states_used_bytes": sum(model.stats.get("states_used_bytes", 0) for model in worker.models),
                "states_cached_bytes": sum(model.stats.get("states_cached_bytes", 0) for model in worker.models),
                "num_active": worker.num_active,
                "max_active": worker.max_active,
                "draining": worker.draining,
                "energy": [
                    {
                        "device": reading.device.rpartition("/")[2],
                        "counter": reading.source,
                        "watts": round(reading.watts, 1),
                        "hour_watts": round(reading.hour_watts, 1),
                    }
                    for reading in worker.energy
                ],
                "energy_notice": worker.energy_notice,
                "models": [names.get(model.checkpoint_id, model.checkpoint_id) for model in worker.models],
            }
            for worker in self.workers
        ]


def look() -> Live:
    """Read the state once, with the time-outs of the Redis client."""
    try:
        return Live(model_states_sync(), tuple(worker_states_sync().values()))
    except BlazrError as error:
        return Live({}, (), error.message)


def with_live(checkpoints: Iterable[Checkpoint], live: Live) -> list[Checkpoint]:
    """Return the rows, each with its state as ``live``."""
    rows = list(checkpoints)
    for row in rows:
        row.live = live.of(row)  # type: ignore[attr-defined]
    return rows


def fit(checkpoint: Checkpoint, sizes: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return whether a checkpoint would fit: each worker plans the load for its memory, and loads nothing.

    Args:
        sizes: Tokens of a sequence and sequences at once, in place of the model's settings; None: these.

    Raises:
        Unavailable: Redis can't be reached, or no worker replied.
        BlazrError: No worker can load the model; the error is the reason.
    """
    found = async_to_sync(model_fit)(str(checkpoint.pk), sizes)
    return {"fits": fits_somewhere(found), "workers": found}


def load(checkpoint: Checkpoint) -> None:
    """Request a load from any worker; returns at once.

    Raises:
        Unavailable: Redis can't be reached.
    """
    broker.request_load_sync(str(checkpoint.pk))


def unload(checkpoint: Checkpoint) -> None:
    """Request the workers that hold a model to unload it once its requests have ended.

    Raises:
        Unavailable: Redis can't be reached.
    """
    request_unload_sync(str(checkpoint.pk))


def unload_before_delete(checkpoint: Checkpoint) -> None:
    """Call ``unload``; ignore an unavailable Redis, because a checkpoint can be deleted without Redis."""
    try:
        unload(checkpoint)
    except Unavailable:
        return


def load_adapter(checkpoint_id: str, adapter_id: str) -> ResidentAdapter | None:
    """Load a LoRA adapter on the workers that hold its model; return it as they have it, None if none holds the model.

    Raises:
        Unavailable: Redis can't be reached, no worker runs, or one that holds the model didn't reply in time.
        BlazrError: No worker could load it; the error is the reason.
    """
    found = async_to_sync(adapter_order)("load-adapter", checkpoint_id, adapter_id)
    return next(iter(merge_adapters(found)), None)


def unload_adapter(checkpoint_id: str, adapter_id: str) -> ResidentAdapter | None:
    """Let a LoRA adapter leave the memory of all workers; return it while requests go through it.

    Raises:
        Unavailable: Redis can't be reached, or a worker that holds the model didn't reply in time.
        BlazrError: A worker couldn't unload it.
    """
    found = async_to_sync(adapter_order)("unload-adapter", checkpoint_id, adapter_id)
    return next(iter(merge_adapters(found)), None)


def forget_adapter(adapter_id: str) -> None:
    """Take a removed adapter away from the workers.

    Without Redis they keep it until their model goes, and no request can name it any more.
    """
    try:
        forget_adapter_sync(adapter_id)
    except Unavailable:
        return
