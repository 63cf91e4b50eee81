"""Declare the registry's Celery tasks, which are idempotent and may run at the same time."""

from __future__ import annotations

from celery import shared_task

from models_registry import services
from models_registry.adapters import adapter_states_refresh
from models_registry.passports import passport_next
from models_registry.runs.turns import start_turn
from models_registry.sweep import storage_sweep
from models_registry.uploads import uploads_recheck


@shared_task(name="models_registry.sweep", ignore_result=True)  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Remove what dead processes left, go on with their checks, start a passport; run by beat every minute."""
    storage_sweep()
    services.checkpoint_states_refresh()
    adapter_states_refresh()
    passport_next()
    uploads_recheck()


@shared_task(name="models_registry.watch_runs", ignore_result=True)  # type: ignore[untyped-decorator]
def watch_runs() -> None:
    """Look at the directories of training runs, in a thread of its own; run by beat every few seconds."""
    start_turn()
