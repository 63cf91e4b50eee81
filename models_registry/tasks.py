"""Celery tasks of the registry: thin, idempotent, safe beside each other."""

from __future__ import annotations

from celery import shared_task

from models_registry import services, uploads


@shared_task(name="models_registry.sweep", ignore_result=True)  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Remove what dead uploads left, and note whose files have gone or come back. Every minute by beat."""
    uploads.storage_sweep()
    services.checkpoint_states_refresh()
