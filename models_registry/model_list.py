"""Serve the list of models: searched, filtered and sorted by the address, which a list that is drawn anew keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Max
from django.http import QueryDict
from django.utils import timezone

from inference.models import UsageSpan
from inference.models.readable_rows import readable_rows
from models_registry import live, selectors
from models_registry.layer_ribbon import MIXES, ribbon_legend
from models_registry.list_facts import ListFacts, list_facts
from models_registry.page_numbers import number_of
from models_registry.views import StaffPage

MAX_QUERY_CHARS = 200
MODELS_SHOWN = 50
MAX_RATE = 1e12
"""More tokens per second are no measurement but a damaged row."""
STATES: Mapping[str, str] = {
    "ready": "loaded",
    "loading": "loading",
    "unloaded": "not loaded",
    "failed": "failed or missing",
}
_STATE_ORDER = {"ready": 0, "loading": 1, "failed": 2, "unloaded": 3, "unknown": 4}
_ROW = (
    "id", "served_model_name", "source", "origin", "format", "model_type", "architecture", "dtype", "num_layers",
    "num_parameters", "size_bytes", "settings", "state", "live",
)  # fmt: skip
_SOURCES = {"path": "registered by path", "hub": "from the hub", "upload": "uploaded"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column that sorts.

    Attributes:
        value: What a row is sorted by; None: not known, which comes last.
        is_number: Whether its values are numbers, of which the greatest come first.
    """

    label: str
    value: Callable[[Mapping[str, Any]], Any]
    is_number: bool = False

    @property
    def first_order(self) -> str:
        return "desc" if self.is_number else "asc"


COLUMNS: Mapping[str, Column] = {
    "name": Column("Name", lambda row: row["served_model_name"].lower()),
    "state": Column("State", lambda row: _STATE_ORDER[row["status"]]),
    "layers": Column("Layers", lambda row: row["num_layers"], is_number=True),
    "stored": Column("Stored as", lambda row: (row["dtype"], row["facts"].quantisation)),
    "parameters": Column("Parameters", lambda row: row["num_parameters"], is_number=True),
    "size": Column("On disk", lambda row: row["size_bytes"], is_number=True),
    "speed": Column("Tokens/s", lambda row: row["live"]["tokens_per_s"] or row["peak"], is_number=True),
}


class ModelsPage(StaffPage):
    """All checkpoints."""

    template_name = "registry/models.html"
    section = "models"
    permission_required = "models_registry.view_checkpoint"

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the rows that match the address in its order, and what each says beside its own columns."""
        query = self.request.GET
        rows, notice = model_rows()
        words = query.get("q", "")[:MAX_QUERY_CHARS]
        state, mix = (_chosen(query, name, known) for name, known in (("state", STATES), ("layers", MIXES)))
        sort = _chosen(query, "sort", COLUMNS) or "name"
        order = _chosen(query, "order", ("asc", "desc")) or COLUMNS[sort].first_order
        found = [
            row
            for row in rows
            if all(word in row["text"] for word in words.lower().split())
            and state in ("", row["status"])
            and mix in ("", row["mix"])
        ]
        last_offset = max(len(found) - 1, 0) // MODELS_SHOWN * MODELS_SHOWN
        # The address may be of a time when more models matched.
        offset = min(number_of(query.get("offset"), 0, 0, 1 << 31), last_offset)
        shown = sorted_rows(found, sort, order)[offset : offset + MODELS_SHOWN]
        return {
            "q": words,
            "state": state,
            "states": STATES.items(),
            "layers": mix,
            "mixes": MIXES.items(),
            "is_filtered": bool(words.strip() or state or mix),
            "rows": shown,
            "found": len(found),
            "first": offset + 1,
            "last": offset + len(shown),
            "back": _at_offset(query, max(0, offset - MODELS_SHOWN)) if offset else "",
            "next": _at_offset(query, offset + MODELS_SHOWN) if offset < last_offset else "",
            "sort": sort,
            "order": order,
            "columns": _headings(query, sort, order),
            "legend": ribbon_legend(row["facts"].ribbon for row in shown if row["facts"].ribbon),
            "total": len(rows),
            "notice": notice,
        }


def model_rows() -> tuple[list[dict[str, Any]], str]:
    """Return all checkpoints by name, each with what the list shows of it, and why the workers' state isn't known."""
    seen = live.look()
    stored = selectors.checkpoint_list().only(*(name for name in _ROW if name != "live"), "updated_at")
    checkpoints = live.with_live(readable_rows(stored), seen)
    facts, peaks = list_facts(checkpoints), peak_rates()
    # Not by the API's serializer, which takes a fifth of the page's time.
    shown = ({name: getattr(checkpoint, name) for name in _ROW} for checkpoint in checkpoints)
    return [{**row, **_words(row, facts[row["id"]], peaks)} for row in shown], seen.notice


def peak_rates() -> dict[str, float]:
    """Return the most tokens per second of each model in a minute of the last hour or a quarter of an hour of the day;
    one that generated nothing has none."""
    begin = timezone.now() - timedelta(days=1)
    # SQLite keeps texts in such a column, too; they are greater than any number.
    spans = UsageSpan.objects.filter(begin__gte=begin, tokens_per_s__gt=0, tokens_per_s__lt=MAX_RATE).order_by()
    return dict(spans.values_list("model").annotate(peak=Max("tokens_per_s")))


def sorted_rows(rows: Sequence[dict[str, Any]], sort: str, order: str) -> list[dict[str, Any]]:
    """Return the rows in an order, those whose value isn't known at the end, equal ones by name."""
    value = COLUMNS[sort].value
    by_name = sorted(rows, key=COLUMNS["name"].value)
    known = [row for row in by_name if value(row) is not None]
    unknown = [row for row in by_name if value(row) is None]
    return sorted(known, key=value, reverse=order == "desc") + unknown


def _words(row: Mapping[str, Any], facts: ListFacts, peaks: Mapping[str, float]) -> dict[str, Any]:
    names = ("served_model_name", "model_type", "architecture", "format", "dtype", "origin")
    origin = (row["origin"] if row["source"] == "upload" else "") or _SOURCES.get(row["source"], row["source"])
    departures, quant = row["live"]["departures"], row["settings"].get("quant")
    status = row["live"]["status"]
    return {
        "text": f"{' '.join(str(row[name]) for name in names)} {facts.quantisation}".lower(),
        "origin_words": origin,
        "held": status in ("ready", "loading"),
        "departure": departures[-1]["reason"] if departures and status == "unloaded" else "",
        "status": status if row["state"] == "available" else "failed",
        "facts": facts,
        "mix": facts.ribbon.mix if facts.ribbon else "",
        "load_quant": quant if quant in ("int8", "int4") else "",
        "peak": peaks.get(row["served_model_name"]),
    }


def _chosen(query: QueryDict, name: str, known: Any) -> str:
    value = query.get(name, "")
    return value if value in known else ""


def _at_offset(query: QueryDict, offset: int) -> str:
    """Return the address of the same list from another row on."""
    address = query.copy()
    address["offset"] = str(offset)
    return f"?{address.urlencode()}"


def _headings(query: QueryDict, sort: str, order: str) -> list[dict[str, Any]]:
    """Return the columns with the addresses that sort by them; the sorted one's turns the order round."""
    found = []
    for name, column in COLUMNS.items():
        is_sorted = name == sort
        turned = "asc" if order == "desc" else "desc"
        address = query.copy()
        address.pop("offset", None)
        address["sort"], address["order"] = name, turned if is_sorted else column.first_order
        found.append(
            {
                "name": name,
                "label": column.label,
                "is_number": column.is_number and name != "layers",
                "aria_sort": {"asc": "ascending", "desc": "descending"}[order] if is_sorted else "",
                "mark": {"asc": "▲", "desc": "▼"}[order] if is_sorted else "",
                "address": f"?{address.urlencode()}",
            }
        )
    return found
