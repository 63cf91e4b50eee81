"""Short ways to make schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from inference.access.api_keys import api_key_create, principal_of_tenant
from inference.models import Schedule
from inference.schedules.services import schedule_create
from inference.values.principal import LOCAL, Principal
from tests.inference.batches.fakes import line, store_file


def key(*scopes: str, **options: Any) -> Principal:
    """The caller of a new key."""
    row, _ = api_key_create(name="key", scopes=scopes or ("files",), **options)
    return principal_of_tenant(f"key:{row.pk}")


def load_values(**values: Any) -> dict[str, Any]:
    """The members of a schedule that loads a model."""
    return {"cron": "0 8 * * 1-5", "time_zone": "Europe/Berlin", "action": "load", "model": "tiny", **values}


def batch_members(principal: Principal = LOCAL, **members: Any) -> dict[str, Any]:
    """The members of a batch of one line."""
    if "input_file_id" not in members:
        members["input_file_id"] = store_file([line("a")], principal).file_id
    return {"endpoint": "/v1/completions", "completion_window": "24h", **members}


def make_schedule(principal: Principal = LOCAL, *, cron: str = "0 3 * * *", **batch: Any) -> Schedule:
    """A schedule that makes batches of one line."""
    values = {"cron": cron, "action": "batch", "batch": batch_members(principal, **batch)}
    return schedule_create(values=values, principal=principal)


def make_due(row: Schedule, due_at: datetime) -> Schedule:
    """Let the next time of a schedule be another one."""
    row.next_run_at = due_at
    row.save(update_fields=["next_run_at"])
    return row
