"""Requests that run or wait, requests that have ended, and one of them with where its time went."""

from __future__ import annotations

import json
from typing import Any

from asgiref.sync import async_to_sync
from django.urls import reverse

from inference.access.accounts import principal_of_staff
from inference.batches.replays import replay_list, texts_of_log, why_not_replayable
from inference.errors import BlazrError, UnknownRequest
from inference.models import UsageRecord
from inference.models.readable_rows import readable_rows
from inference.pages.cache_words import cache_sentence
from inference.pages.callers import caller_of, callers_of
from inference.pages.jobs import prompt_text
from inference.pages.replay_targets import REPLAY, VIEW, replay_targets
from inference.pages.request_phases import slow_words, waterfall
from inference.records.usage_spans import UNFAILED
from inference.serving.running_requests import RunningRequest, request_cancel, unended_requests
from inference.values.principal import LOCAL
from inference.values.queue_place import QueuePlace
from models_registry.page_numbers import number_of
from models_registry.selectors import checkpoint_list
from models_registry.views import StaffAction, StaffPage

NUM_ROWS = 50
NUM_RUNNING = 50
NUM_REPLAYS = 5
MAX_TEXT = 200
RUNNING_REGION, ENDED_REGION = "running-region", "ended-region"
"""Elements that are drawn anew alone (``templates/registry/requests.html``)."""
CANCEL = "inference.scope_admin"


class RequestsPage(StaffPage):
    """What runs, and the newest requests that have ended."""

    template_name = "registry/requests.html"
    section = "requests"
    permission_required = VIEW

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the requests that match the address, and those that have not ended.

        A region that is drawn anew, every two seconds while something runs, needs its own part only.
        """
        drawn = self.drawn(RUNNING_REGION, ENDED_REGION)
        context: dict[str, Any] = {"drawn": drawn}
        if RUNNING_REGION in drawn:
            context |= running_context()
        if ENDED_REGION in drawn:
            context |= self._ended()
        if len(drawn) == 2:
            context |= self._replays(sorted({item["row"].model for item in context["requests"]}))
        return context

    def _ended(self) -> dict[str, Any]:
        """Return the requests of the log that match the address, newest first."""
        query = self.request.GET
        text, outcome = query.get("q", "")[:MAX_TEXT].replace("\0", "").strip(), query.get("outcome", "")
        rows = UsageRecord.objects.defer("prompt", "output", "plan", "phases").order_by("-pk")
        if text:
            rows = rows.filter(request_id=text) | rows.filter(model=text)
        if outcome == "failed":
            rows = rows.exclude(outcome__in=UNFAILED)
        elif outcome:
            rows = rows.filter(outcome=outcome[:32])
        before = number_of(query.get("before"), 0, 0, 1 << 62)
        if before:
            rows = rows.filter(pk__lt=before)
        found = readable_rows(rows, NUM_ROWS + 1)
        shown = found[:NUM_ROWS]
        callers = callers_of(row.tenant for row in shown)
        older = query.copy()
        if len(found) > NUM_ROWS:
            older["before"] = str(shown[-1].pk)
        return {
            "q": text,
            "outcome": outcome,
            "before": before,
            "requests": [{"row": row, "caller": callers[row.tenant], "mark": mark_of(row)} for row in shown],
            "older": f"?{older.urlencode()}" if len(found) > NUM_ROWS else "",
        }

    def _replays(self, models: list[str]) -> dict[str, Any]:
        """Return the newest replays, and what the form for another one offers.

        Args:
            models: Names of the models whose requests can be replayed.
        """
        user = self.request.user
        if not user.has_perm(REPLAY):
            return {}
        replays = replay_list(principal=principal_of_staff(user), limit=NUM_REPLAYS)
        return {"sees_replays": True, "replays": replays, "sources": models, "targets": replay_targets()}


class RequestPage(StaffPage):
    """One request."""

    template_name = "registry/request.html"
    section = "requests"
    permission_required = VIEW

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the request, its phases, and why it took so long in words."""
        row = logged_request(kwargs["request_id"])
        can_replay = self.request.user.has_perm(REPLAY)
        refusal = why_not_replayable(row) if can_replay else ""
        return {
            "row": row,
            "caller": caller_of(row.tenant),
            "mark": mark_of(row),
            "phases": waterfall(row),
            "slow": slow_words(row),
            "cache": cache_sentence(row.cache_outcome),
            "rate": _rate(row),
            "cached_percent": round(100 * row.cached_tokens / row.prompt_tokens) if row.prompt_tokens else 0,
            "prompts": logged_prompts(row),
            "outputs": [_encodable(text) for text in texts_of_log(row)] if row.output else [],
            "refusal": refusal,
            "targets": replay_targets() if can_replay and not refusal else [],
        }


class RequestCancel(StaffAction):
    """Cancel a request that runs or waits; whoever waits for it gets an error."""

    permission_required = CANCEL

    def act(self, **kwargs: Any) -> str:
        """Cancel it; returns the address of the list."""
        request_id = kwargs["request_id"]
        found = next((item for item in async_to_sync(unended_requests)() if item.request_id == request_id), None)
        if found is not None:  # otherwise it has ended meanwhile
            async_to_sync(request_cancel)(found)
        return reverse("requests")


def running_context() -> dict[str, Any]:
    """Return the requests that have not ended, or why nobody knows them."""
    try:
        found = async_to_sync(unended_requests)()
    except BlazrError as error:
        return {"running": [], "running_notice": error.message}
    shown = found[:NUM_RUNNING]
    names = dict(
        checkpoint_list().filter(pk__in={item.checkpoint_id for item in shown}).values_list("pk", "served_model_name")
    )
    models = {str(key): name for key, name in names.items()}
    callers = callers_of(item.owner or LOCAL.tenant for item in shown)
    return {
        "running": [
            {
                "request": item,
                "model": models.get(item.checkpoint_id, item.checkpoint_id),
                "caller": callers[item.owner or LOCAL.tenant],
                "mark": "running" if item.state == "running" else "queued",
                "words": state_words(item),
            }
            for item in shown
        ],
        "num_running": len(found),
        "running_notice": "",
    }


def state_words(item: RunningRequest) -> str:
    """Return what a request does, or what it waits for."""
    if item.state == "running":
        return "running"
    return "waiting" if item.place is None else place_words(item.place)


def place_words(place: QueuePlace) -> str:
    """Return where a waiting request stands: "number 3, about 4 s"."""
    about = "" if place.estimated_s is None else f", about {max(1, round(place.estimated_s))} s"
    if place.waits_for == "worker":
        return "waits for a worker"
    if place.waits_for == "swap":
        return f"waits until {place.evicts} is unloaded{about}"
    if place.waits_for == "load":
        return f"waits for the load of its model{about}"
    return f"number {place.position} in the queue{about}"


def logged_request(request_id: str) -> UsageRecord:
    """Return a request of the log.

    Raises:
        UnknownRequest: The log has none with this id.
    """
    rows = readable_rows(UsageRecord.objects.filter(request_id=request_id.replace("\0", "")), 1)
    if not rows:
        raise UnknownRequest(f"There is no request {request_id[:60]!r} in the log.", param="request_id")
    return rows[0]


def logged_prompts(row: UsageRecord) -> list[str]:
    """Return the logged prompts of a request as texts; what was cut is one text, as it was kept."""
    try:
        return [_encodable(prompt_text(prompt)) for prompt in json.loads(row.prompt)] if row.prompt else []
    except (ValueError, TypeError, AttributeError):
        return [row.prompt]


def _encodable(text: str) -> str:
    """Return the text with a question mark for each lone surrogate, which JSON may have and a page can't."""
    return text.encode(errors="replace").decode()


def mark_of(row: UsageRecord) -> str:
    """Return the name of the dot before a request's outcome."""
    if row.outcome == "completed":
        return "succeeded"
    return "cancelled" if row.outcome in UNFAILED else "failed"


def _rate(row: UsageRecord) -> float | None:
    """Return the tokens per second after the first one."""
    if row.ttft_s is None or row.completion_tokens < 2 or row.duration_s <= row.ttft_s:
        return None
    return (row.completion_tokens - 1) / (row.duration_s - row.ttft_s)
