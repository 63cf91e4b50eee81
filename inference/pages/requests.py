"""Requests that have ended, from the request log, and one of them as a line of what it waited for."""

from __future__ import annotations

from typing import Any

from inference.errors import UnknownRequest
from inference.models import UsageRecord
from inference.models.readable_rows import readable_rows
from inference.pages.keys import tenant_name
from inference.records.usage_report import key_names
from models_registry.views import StaffPage

NUM_ROWS = 50
MAX_TEXT = 200
BAR_WIDTH = 1000


class RequestsPage(StaffPage):
    """The newest requests."""

    template_name = "registry/requests.html"
    section = "requests"
    permission_required = "inference.view_usagerecord"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the requests that match the address."""
        query = self.request.GET
        text, outcome = query.get("q", "")[:MAX_TEXT].replace("\0", "").strip(), query.get("outcome", "")
        rows = UsageRecord.objects.defer("prompt", "output").order_by("-pk")
        if text:
            rows = rows.filter(request_id=text) | rows.filter(model=text)
        if outcome == "failed":
            rows = rows.exclude(outcome__in=("completed", "cancelled"))
        elif outcome:
            rows = rows.filter(outcome=outcome[:32])
        before = query.get("before", "")
        if before.isascii() and before.isdecimal() and len(before) < 17:
            rows = rows.filter(pk__lt=int(before))
        found = readable_rows(rows, NUM_ROWS + 1)
        shown = found[:NUM_ROWS]
        names = key_names({row.tenant for row in shown})
        older = query.copy()
        if len(found) > NUM_ROWS:
            older["before"] = str(shown[-1].pk)
        return {
            "q": text,
            "outcome": outcome,
            "before": before,
            "requests": [
                {"row": row, "caller": names.get(row.tenant, ("", row.tenant))[1], "mark": _mark(row)} for row in shown
            ],
            "older": f"?{older.urlencode()}" if len(found) > NUM_ROWS else "",
        }


class RequestPage(StaffPage):
    """One request."""

    template_name = "registry/request.html"
    section = "requests"
    permission_required = "inference.view_usagerecord"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the request, its phases as parts of a bar, and why it took so long in words."""
        rows = readable_rows(UsageRecord.objects.filter(request_id=kwargs["request_id"]), 1)
        if not rows:
            raise UnknownRequest(f"There is no request {kwargs['request_id'][:60]!r} in the log.", param="request_id")
        row = rows[0]
        return {
            "row": row,
            "caller": tenant_name(row.tenant),
            "mark": _mark(row),
            "phases": phases(row),
            "rate": _rate(row),
            "cached_percent": round(100 * row.cached_tokens / row.prompt_tokens) if row.prompt_tokens else 0,
        }


def phases(row: UsageRecord) -> list[dict[str, Any]]:
    """Return waiting, reading the prompt and writing, each with seconds and its place in a bar of ``BAR_WIDTH``."""
    waited = min(row.queue_s, row.duration_s)
    first = row.duration_s if row.ttft_s is None else min(max(row.ttft_s, waited), row.duration_s)
    parts = (
        ("waited", "for room, or for the model to load", waited),
        ("read the prompt", "until the first token", first - waited),
        ("wrote", "from the first token to the last", row.duration_s - first),
    )
    total, begin, found = row.duration_s or 1.0, 0.0, []
    for number, (name, what, seconds) in enumerate(parts):
        found.append(
            {
                "name": name,
                "what": what,
                "seconds": seconds,
                "x": round(BAR_WIDTH * begin / total),
                "width": max(1, round(BAR_WIDTH * seconds / total)),
                "kind": ("mlp", "attention", "moe")[number],
            }
        )
        begin += seconds
    return found


def _rate(row: UsageRecord) -> float | None:
    """Return the tokens per second after the first one."""
    if row.ttft_s is None or row.completion_tokens < 2 or row.duration_s <= row.ttft_s:
        return None
    return (row.completion_tokens - 1) / (row.duration_s - row.ttft_s)


def _mark(row: UsageRecord) -> str:
    return {"completed": "succeeded", "cancelled": "cancelled"}.get(row.outcome, "failed")
