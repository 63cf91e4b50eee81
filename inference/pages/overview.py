"""The overview: whether the server is healthy, what is slow, what changed; what is loaded, by which workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from inference.access.accounts import principal_of_staff
from inference.batches.services import batch_list
from inference.host.units import format_bytes
from inference.jobs.selectors import job_list
from inference.pages.first_steps import start_steps
from inference.pages.health import changes, failed_requests, num_failures, problems
from inference.pages.jobs import BATCHES, shown_batches
from inference.pages.traffic import traffic
from models_registry.api.views import overview
from models_registry.memory_bar import bar_parts
from models_registry.views import StaffPage

NUM_MODELS = 8
NUM_JOBS = 5
NUM_BATCHES = 3
REGIONS = ("now", "traffic", "overview")
LATE_S = 8.0
"""A worker whose heartbeat is older is silent."""
_ORDER = {"ready": 0, "loading": 1, "failed": 2}


class OverviewPage(StaffPage):
    """What a server does and did: its health, its requests, its models, workers and jobs."""

    template_name = "registry/dashboard.html"
    section = "dashboard"
    permission_required = "models_registry.view_checkpoint"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the registry's overview, summed up in the order of interest, and the requests of the last hour or day.

        A region that is drawn anew needs its own part only (``templates/registry/dashboard.html``).
        """
        user = self.request.user
        state = overview()
        state["workers"] = [{**worker, **_worker_state(worker)} for worker in state["workers"]]
        drawn = self.drawn(*REGIONS)
        context = {"drawn": drawn, "workers": state["workers"]}
        sees_requests = user.has_perm("inference.view_usagerecord")
        if "traffic" in drawn:
            context |= traffic(self.request.GET) | {
                "errors": failed_requests() if sees_requests else [],
                "changes": changes(state, sees_keys=user.has_perm("inference.view_apikey")),
            }
        if "now" in drawn:
            context |= _now(state, sees_requests=sees_requests) | start_steps(self.request, state["checkpoints"])
        if "overview" in drawn:
            context["models"] = sorted(state["checkpoints"], key=_interest)[:NUM_MODELS]
            if user.has_perm(BATCHES):
                principal = principal_of_staff(user)
                context |= {
                    "jobs": job_list(principal=principal, limit=NUM_JOBS),
                    "batches": shown_batches(batch_list(principal=principal, after=None, limit=NUM_BATCHES)),
                }
        return context


def _now(state: Mapping[str, Any], *, sees_requests: bool) -> dict[str, Any]:
    """Return what is wrong, and the figures of this moment."""
    checkpoints, workers = state["checkpoints"], state["workers"]
    budget = sum(worker["memory_budget_bytes"] for worker in workers)
    failures, requests = num_failures(timezone.now())
    return {
        "problems": problems(state, workers, (failures, requests), sees_requests=sees_requests),
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
            "failures": failures,
            "requests": requests,
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
        "bar": memory_bar(worker),
    }


def memory_bar(worker: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a device's memory for models, each with its place in a bar.

    Of the states, a CPU gives memory to those that were written only; the others are promised, and may not be taken.
    """
    budget = worker["memory_budget_bytes"]
    if not budget:
        return []
    reserved = min(worker["states_bytes"], worker["memory_used_bytes"])
    adapters = min(worker["adapter_bytes"], worker["memory_used_bytes"] - reserved)
    used = min(worker["states_used_bytes"], reserved)
    cached = min(worker["states_cached_bytes"], reserved - used)
    return bar_parts(
        [
            ("weights", "weights", worker["memory_used_bytes"] - reserved - adapters),
            ("adapters' reserve", "adapters", adapters),
            ("used states", "used", used),
            ("states for later prompts", "cached", cached),
            ("reserved states", "states", reserved - used - cached),
            ("free", "free", max(0, budget - worker["memory_used_bytes"])),
        ]
    )
