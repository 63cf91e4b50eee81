"""Celery tasks: thin. The engine pool takes ``generate`` before it would run here."""

from __future__ import annotations

from celery import shared_task

from inference.errors import EngineError
from inference.transport import keys as redis_keys
from inference.values.messages import GenerateMessage


@shared_task(name=redis_keys.GENERATE_TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def generate(message: GenerateMessage) -> None:
    """A generation; runs in the worker's engine, never in a task thread.

    Raises:
        EngineError: The worker was started with another pool.
    """
    raise EngineError("generations need the engine pool; start the worker with: blazr serve, or celery … -P custom")


@shared_task(name=redis_keys.LOAD_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def load_model(checkpoint_id: str) -> None:
    """Load a model into the worker that happens to get this."""
    from inference.worker.runtime import current

    current().manager.ensure(checkpoint_id)


@shared_task(name=redis_keys.SWEEP_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_jobs() -> None:
    """Give the jobs of lost workers back to the queue; by beat, and more often by the workers themselves."""
    from inference.jobs.sweep import jobs_sweep

    jobs_sweep()


@shared_task(name=redis_keys.SWEEP_RESPONSES_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_responses() -> None:
    """Delete stored responses that are too old; by beat."""
    from inference.records import stored_responses

    stored_responses.responses_sweep()


@shared_task(name=redis_keys.REQUEST_LOG_SWEEP_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def sweep_request_log() -> None:
    """Remove requests from the log that are older than it is kept."""
    from inference.records.request_log import request_log_sweep

    request_log_sweep()


@shared_task(name=redis_keys.WEBHOOKS_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def deliver_webhooks() -> None:
    """Send the messages about batches that are due; by beat."""
    from inference.batches import webhooks

    webhooks.deliver_due()
