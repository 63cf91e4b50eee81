"""The usage of a model, a tab of its page: how its requests went, and which callers used it how much."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from inference.pages.callers import usage_callers
from inference.pages.keys import VIEW_USAGE
from inference.pages.traffic import SPANS, model_traffic, percent
from inference.records.energy_price import energy_price
from inference.records.usage_report import DEFAULT_DAYS, usage_objects, usage_query
from models_registry.model_page import ModelPage
from models_registry.models import Checkpoint

NUM_CALLERS = 20


class UsagePage(ModelPage):
    """The tab of a model's usage."""

    def current_tab(self) -> str:
        """Return this page's tab."""
        return "usage"

    def base(self, checkpoint: Checkpoint) -> str:
        """Return the address of the page that has the other tabs."""
        return reverse("model", args=[checkpoint.pk])

    def _usage_tab(self, checkpoint: Checkpoint) -> dict[str, Any]:
        if self.is_head:
            return {}
        name = self.request.GET.get("span", "hour")
        spans = model_traffic(checkpoint.served_model_name)
        chosen = next((span for span in spans if span["name"] == name), spans[0])
        sees_callers = self.request.user.has_perm(VIEW_USAGE)
        return {
            "spans": spans,
            "span_names": list(SPANS),
            "span": chosen["name"],
            "charts": chosen["charts"],
            "days": DEFAULT_DAYS,
            "sees_callers": sees_callers,
            **(callers_context(checkpoint.served_model_name) if sees_callers else {}),
        }


def callers_context(model: str) -> dict[str, Any]:
    """Return the callers of a model over the last days with their shares of its tokens, the greatest first."""
    query = usage_query(first=None, last=None, group_by="key", tenant=None, model=model)
    rows = sorted(usage_objects(query), key=lambda row: (-row["total_tokens"], row["key"]))
    total, shown = sum(row["total_tokens"] for row in rows), rows[:NUM_CALLERS]
    named = usage_callers(shown)
    return {
        "callers": [
            {**row, "caller": named[row["key"]], "share": percent(row["total_tokens"], total)} for row in shown
        ],
        "num_callers": len(rows),
        "total_tokens": total,
        "has_energy": any(row["energy_wh"] is not None for row in rows),
        "price": energy_price(),
    }
