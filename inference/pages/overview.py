"""The overview: what is loaded, which workers are alive, the latest jobs."""

from __future__ import annotations

from typing import Any

from inference.access.accounts import principal_of_user
from inference.host.units import format_bytes
from inference.jobs.selectors import job_list
from models_registry.api.views import overview
from models_registry.views import StaffPage

NUM_MODELS = 8
NUM_JOBS = 5
LATE_S = 8.0
"""A worker whose heartbeat is older is silent."""
_ORDER = {"ready": 0, "loading": 1, "failed": 2}


class OverviewPage(StaffPage):
    """Models, workers and jobs at a glance."""

    template_name = "registry/dashboard.html"
    section = "dashboard"
    permission_required = "models_registry.view_checkpoint"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the registry's overview, summed up and in the order of interest."""
        state = overview()
        checkpoints, workers = state["checkpoints"], state["workers"]
        budget = sum(worker["memory_budget_bytes"] for worker in workers)
        principal = principal_of_user(self.request.user)
        sees_jobs = principal is not None and self.request.user.has_perm("inference.scope_files")
        return {
            "notice": state["notice"],
            "models": sorted(checkpoints, key=_interest)[:NUM_MODELS],
            "workers": [{**worker, **_worker_state(worker)} for worker in workers],
            "jobs": job_list(principal=principal, limit=NUM_JOBS) if principal is not None and sees_jobs else [],
            "gauges": {
                "num_ready": sum(row["live"]["status"] == "ready" for row in checkpoints),
                "num_models": len(checkpoints),
                "num_running": sum(row["live"]["num_running"] for row in checkpoints),
                "num_waiting": sum(row["live"]["num_waiting"] + row["live"]["num_queued"] for row in checkpoints),
                "num_queued_jobs": state["jobs"]["queued"],
                "tokens_per_s": sum(row["live"]["tokens_per_s"] for row in checkpoints),
                "used_bytes": sum(worker["memory_used_bytes"] for worker in workers),
                "budget_bytes": budget,
                "high_bytes": budget * 9 // 10,
            },
        }


def _interest(row: dict[str, Any]) -> tuple[int, float]:
    return _ORDER.get(row["live"]["status"], 3), -row["live"]["last_used_at"]


def _worker_state(worker: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a worker as a mark and in words, and its memory in words."""
    mark, words = "ready", "alive"
    if worker["draining"]:
        mark, words = "loading", "stopping"
    elif worker["is_late"]:
        mark, words = "failed", f"no step for {worker['step_age_s']:.0f} s"
    elif worker["heartbeat_age_s"] > LATE_S:
        mark, words = "failed", "silent"
    used, budget = worker["memory_used_bytes"], worker["memory_budget_bytes"]
    return {
        "mark": mark,
        "words": words,
        "memory": f"{format_bytes(used)} of {format_bytes(budget)}",
        "high_bytes": budget * 9 // 10,
    }
