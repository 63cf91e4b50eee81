"""Show pulls on pages: the running ones, and of each origin the last one that has ended."""

from __future__ import annotations

from typing import Any

from models_registry.models import PullJob

MAX_SHOWN = 10
_MAX_READ = 50
State = PullJob.State


def pull_rows() -> list[dict[str, Any]]:
    """Return the pulls that people may want to see, newest first; the last one of an origin stands for the earlier."""
    newest: dict[str, PullJob] = {}
    for row in PullJob.objects.select_related("checkpoint").defer("checkpoint__inspection")[:_MAX_READ]:
        newest.setdefault(row.origin, row)
    return [_shown(row) for row in list(newest.values())[:MAX_SHOWN]]


def open_pulls() -> list[dict[str, Any]]:
    """Return the running pulls in short, newest first, for the bar at the top of every page."""
    return [
        {
            "id": str(row.pk),
            "name": row.origin,
            "received": row.fetched_bytes,
            "size": row.size_bytes,
            "stage": row.stage,
        }
        for row in PullJob.objects.filter(state=State.RUNNING)
    ]


def pulls_now() -> Any:
    """Return what changes when one of the shown pulls changes."""
    columns = ("pk", "state", "stage", "file", "fetched_bytes", "bytes_per_s", "checkpoint_id")
    return list(PullJob.objects.values_list(*columns)[:_MAX_READ])


def _shown(row: PullJob) -> dict[str, Any]:
    missing = row.size_bytes - row.fetched_bytes
    is_fetching = row.state == State.RUNNING and row.stage == PullJob.Stage.FETCHING
    return {
        "row": row,
        "is_fetching": is_fetching,
        "stage": row.get_stage_display(),
        "left_s": missing / row.bytes_per_s if is_fetching and row.bytes_per_s and missing > 0 else None,
        "mark": "refused" if row.state == State.FAILED else row.state,
        "can_go_on": row.state in (State.FAILED, State.CANCELLED),
    }
