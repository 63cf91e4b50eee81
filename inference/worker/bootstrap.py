"""Start a worker process: build its runtime from Django's settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from celery.signals import worker_ready

from inference.host.machine import DEFAULT_MEMORY_SHARE, freeze_objects, machine_memory_bytes
from inference.records.tracing import tracing_start
from inference.worker.energy import energy_counters
from inference.worker.model_manager import ModelManager
from inference.worker.runtime import Background, WorkerConfig, WorkerRuntime, current

logger = logging.getLogger(__name__)

MIN_RESIDENCE_S = 5.0
"""Minimum seconds from load to eviction, so that two models in alternating use don't evict each other each time."""
STREAM_INTERVAL_S = 0.04
"""The publisher's flush interval in seconds; first tokens and ends of requests are sent at once."""


@worker_ready.connect  # type: ignore[untyped-decorator]
def _attach(**kwargs: Any) -> None:
    """Attach the runtime when Celery's consumer is ready."""
    freeze_objects()
    current().attach()


def make_runtime() -> WorkerRuntime:
    """Build the runtime from the settings."""
    from django.conf import settings

    # Celery imports its pool, and so this module, before Django is set up.
    # Torch comes with the first of them: now and not at the first load, so that a ready worker loads without delay.
    from inference.modelling.backends.native import library
    from inference.worker.load_plan import find_adapter, pinned_adapters, plan_load  # needs Django

    library.select(settings.BLAZR_NATIVE)
    if settings.BLAZR_TRACES_ENDPOINT:
        tracing_start(service="blazr-worker")
    device = resolve_device(settings.BLAZR_DEVICE)
    config = WorkerConfig(
        worker_id=settings.BLAZR_WORKER_ID,
        redis_url=settings.BLAZR_REDIS_URL,
        device=device,
        budget_bytes=settings.BLAZR_MEMORY_BUDGET or default_budget_bytes(device),
        max_active=settings.BLAZR_WORKER_ADMISSION,
        drain_grace_s=settings.BLAZR_DRAIN_GRACE_S,
        preload=tuple(settings.BLAZR_PRELOAD),
        min_residence_s=MIN_RESIDENCE_S,
        stream_interval_s=STREAM_INTERVAL_S,
        ends_stuck_process=True,
    )
    return WorkerRuntime(
        config,
        lambda checkpoint_id, sizes=None: plan_load(
            checkpoint_id, sizes, device=device, memory_bytes=config.budget_bytes
        ),
        find_adapter=find_adapter,
        pinned_adapters=pinned_adapters,
        counters=energy_counters(device),
        start_background=lambda manager: start_job_runner(manager, config.worker_id),
    )


def start_job_runner(manager: ModelManager, worker_id: str) -> Background:
    """Start the threads that run jobs, batches and schedules and write the spans of usage; return them as one part."""
    # Rows: Django isn't set up when this module is imported.
    from inference.batches.runner import BatchRunner  # Django
    from inference.jobs.runner import JobRunner  # Django
    from inference.schedules.keeper import ScheduleKeeper  # Django
    from inference.worker.span_writer import SpanWriter  # Django

    keeper = ScheduleKeeper(owner=worker_id)
    jobs = JobRunner(manager, owner=worker_id)
    batches = BatchRunner(manager, owner=worker_id, on_idle=keeper.wake)
    spans = SpanWriter(owner=worker_id)
    for part in (jobs, batches, keeper, spans):
        part.start()
    return _Together((keeper, jobs, batches, spans))


class _Together:
    """Several background parts as one."""

    def __init__(self, parts: Sequence[Background]) -> None:
        self._parts = parts

    def wake(self) -> None:
        """Wake all parts."""
        for part in self._parts:
            part.wake()

    def stop(self, timeout_s: float) -> None:
        """Stop all parts at the same time."""
        threads = [threading.Thread(target=part.stop, args=(timeout_s,)) for part in self._parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def resolve_device(device: str) -> str:
    """Return the device of a setting: for ``auto`` the first CUDA device, or the CPU if there is none."""
    import torch

    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    return device


def default_budget_bytes(device: str) -> int:
    """Return the default memory budget: a share of a CUDA device's free memory, or of the machine's memory."""
    if device.startswith("cuda"):
        from inference.llm.sizes import CUDA_SHARE, free_memory_bytes  # torch comes with it

        return int(CUDA_SHARE * free_memory_bytes(device))
    return int(DEFAULT_MEMORY_SHARE * machine_memory_bytes())
