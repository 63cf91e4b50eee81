"""Declare the Celery tasks; each calls one function. The engine pool takes ``generate`` before it would run here."""

from __future__ import annotations

from celery import shared_task

from inference.batches import webhooks
from inference.errors import EngineError
from inference.jobs.sweep import jobs_sweep
from inference.records import stored_responses
from inference.records.request_log import request_log_sweep
from inference.transport import keys as redis_keys
from inference.values.messages import GenerateMessage


@shared_task(name=redis_keys.GENERATE_TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def generate(message: GenerateMessage) -> None:
    """Run a generation; the engine pool does it, never a task thread.

    Raises:
        EngineError: The worker was started with another pool.
    """
    raise EngineError("generations need the engine pool; start the worker with: blazr serve, or celery … -P custom")


@shared_task(name=redis_keys.LOAD_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def load_model(checkpoint_id: str) -> None:
    """Load a model into the worker that gets this task."""
    from inference.worker.runtime import current  # torch must not come into beat's process, which reads the tasks

    current().manager.ensure(checkpoint_id)


@shared_task(name=redis_keys.SWEEP_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_jobs() -> None:
    """Requeue the jobs of lost workers; run by beat, and more often by the workers themselves."""
    jobs_sweep()


@shared_task(name=redis_keys.SWEEP_RESPONSES_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_responses() -> None:
    """Delete expired stored responses; run by beat."""
    stored_responses.responses_sweep()


@shared_task(name=redis_keys.REQUEST_LOG_SWEEP_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_request_log() -> None:
    """Delete expired requests from the log; run by beat."""
    request_log_sweep()


@shared_task(name=redis_keys.WEBHOOKS_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def deliver_webhooks() -> None:
    """Send the webhook messages that are due, in threads of their own; run by beat."""
    webhooks.start_delivery()
