"""Declare the Celery tasks; each calls one function. Generations aren't tasks (``inference.worker.intake``)."""

from __future__ import annotations

from celery import shared_task

from inference.batches import webhooks
from inference.jobs.sweep import jobs_sweep
from inference.records import stored_responses
from inference.records.request_log import request_log_sweep
from inference.transport import keys as redis_keys


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
