"""Start of a worker process: from the settings to a runtime. The only place here that reads Django's settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from celery.signals import worker_ready

from inference.host.machine import freeze_objects, machine_memory_bytes
from inference.records.tracing import tracing_start
from inference.worker.model_manager import ModelManager
from inference.worker.runtime import Background, WorkerConfig, WorkerRuntime, current

logger = logging.getLogger(__name__)

DEFAULT_MEMORY_SHARE = 0.7
"""Of the machine's memory, for models. Of a CUDA device's see ``inference.llm.sizes.CUDA_SHARE``."""

MIN_RESIDENCE_S = 5.0
"""A loaded model stays so long before it makes room for another: two models in turns would be loaded all the time."""
STREAM_INTERVAL_S = 0.04
"""The publisher's flush interval: a stream gets at most 25 chunks a second. First tokens and ends don't wait."""


@worker_ready.connect  # type: ignore[untyped-decorator]
def _attach(sender: Any, **kwargs: Any) -> None:
    """The consumer reads its first queue."""
    freeze_objects()
    current().attach(sender)


def make_runtime() -> WorkerRuntime:
    """The runtime that the settings describe."""
    from django.conf import settings

    # Celery imports its pool, and so this module, before Django is set up.
    from inference.modelling.backends.native import library  # with torch
    from inference.worker.load_plan import plan_load  # needs Django

    library.select(settings.BLAZR_NATIVE)
    if settings.BLAZR_TRACES_ENDPOINT:
        tracing_start(service="blazr-worker")
    # Here and not at the first load: "ready" shall mean ready.
    device = resolve_device(settings.BLAZR_DEVICE)
    config = WorkerConfig(
        worker_id=settings.BLAZR_WORKER_ID,
        redis_url=settings.BLAZR_REDIS_URL,
        device=device,
        budget_bytes=settings.BLAZR_MEMORY_BUDGET or default_budget_bytes(device),
        max_active=settings.BLAZR_WORKER_ADMISSION,
        visibility_timeout_s=settings.BLAZR_VISIBILITY_TIMEOUT_S,
        drain_grace_s=settings.BLAZR_DRAIN_GRACE_S,
        preload=tuple(settings.BLAZR_PRELOAD),
        min_residence_s=MIN_RESIDENCE_S,
        stream_interval_s=STREAM_INTERVAL_S,
    )
    return WorkerRuntime(
        config,
        lambda checkpoint_id: plan_load(checkpoint_id, device=device, memory_bytes=config.budget_bytes),
        start_background=lambda manager: start_job_runner(manager, config.worker_id),
    )


def start_job_runner(manager: ModelManager, worker_id: str) -> Background:
    """Queued jobs and batches run beside the interactive requests."""
    # Rows: Django isn't set up when this module is imported.
    from inference.batches.keeper import BatchKeeper
    from inference.batches.runner import BatchRunner  # Django
    from inference.jobs.runner import JobRunner  # Django

    keeper = BatchKeeper(owner=worker_id)
    jobs = JobRunner(manager, owner=worker_id)
    batches = BatchRunner(manager, owner=worker_id, on_idle=keeper.wake)
    for part in (jobs, batches, keeper):
        part.start()
    return _Together((keeper, jobs, batches))


class _Together:
    """Several parts of the background as one."""

    def __init__(self, parts: Sequence[Background]) -> None:
        self._parts = parts

    def wake(self) -> None:
        """Wake them all."""
        for part in self._parts:
            part.wake()

    def stop(self, timeout_s: float) -> None:
        """Stop them all, at the same time."""
        threads = [threading.Thread(target=part.stop, args=(timeout_s,)) for part in self._parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def resolve_device(wanted: str) -> str:
    """``auto`` becomes the first CUDA device, or the CPU."""
    import torch

    if wanted == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    return wanted


def default_budget_bytes(device: str) -> int:
    """Memory for models: of a CUDA device a share of what is free now, at the start, of the machine one of all."""
    if device.startswith("cuda"):
        from inference.llm.options import LLMOptions  # torch comes with them
        from inference.llm.sizes import CUDA_SHARE, free_memory_bytes  # torch

        return int(CUDA_SHARE * free_memory_bytes(LLMOptions(device=device)))
    return int(DEFAULT_MEMORY_SHARE * machine_memory_bytes())
