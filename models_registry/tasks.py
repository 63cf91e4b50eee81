"""Declare the registry's Celery tasks, which are idempotent and may run at the same time."""

from __future__ import annotations

from celery import shared_task

from models_registry import services
from models_registry.sweep import storage_sweep


@shared_task(name="models_registry.sweep", ignore_result=True)  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Remove what dead processes left, and record missing and returned checkpoints; run by beat every minute."""
    storage_sweep()
    services.checkpoint_states_refresh()
