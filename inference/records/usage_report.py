"""Sum the daily usage rows for the API, the command line and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django.db.models import QuerySet, Sum, Value
from django.utils import timezone

from inference.errors import InvalidRequest
from inference.models import ApiKey, UsageDay

GROUPS = {"key": "tenant", "model": "model", "day": "day"}
"""What usage can be grouped by, and the column it is in."""
DEFAULT_DAYS = 30
MAX_DAYS = 3660
CHUNK_ROWS = 500

_SUMS = {
    "requests": "requests",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "completion_tokens": "completion_tokens",
    "engine_seconds": "engine_s",
    "queue_seconds": "queue_s",
}
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """A query for usage.

    Attributes:
        first, last: Days (UTC), both included.
        group_by: Names of ``GROUPS``, in the order of the report's columns.
        tenant: Of one caller only; None: of all.
        model: Of one model only.
    """

    first: date
    last: date
    group_by: tuple[str, ...]
    tenant: str | None = None
    model: str | None = None


def usage_question(
    *, first: str | None, last: str | None, group_by: str | None, tenant: str | None, model: str | None
) -> UsageQuestion:
    """Read the parts of a question as people write them.

    Args:
        first, last: ISO dates; without them the last thirty days.
        group_by: Names of ``GROUPS`` with commas between; None: all of them, an empty text: one sum.
        tenant, model: See ``UsageQuestion``.

    Raises:
        InvalidRequest: Names the wrong part.
    """
    until = _day("to", last) if last else timezone.now().date()
    since = _day("from", first) if first else until - timedelta(days=DEFAULT_DAYS - 1)
    if not timedelta(0) <= until - since < timedelta(days=MAX_DAYS):
        raise InvalidRequest(
            f"from {since} to {until} isn't a span of 1 to {MAX_DAYS} days; choose other dates.", param="from"
        )
    names = ["day", "key", "model"] if group_by is None else [item.strip() for item in group_by.split(",") if item]
    for name in names:
        if name not in GROUPS or names.count(name) > 1:
            raise InvalidRequest(
                f"group_by has {name[:40]!r}; it is made of {', '.join(GROUPS)}, each once at most.", param="group_by"
            )
    return UsageQuestion(since, until, tuple(names), tenant, model)


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{name} is {text[:40]!r}, it must be a date such as 2026-11-21.", param=name) from None


def tenant_of_key(text: str) -> str:
    """The tenant that a key's public part (or ``local``, or ``user:N``) stands for; unknown ones have no usage."""
    row = None if "\0" in text else ApiKey.objects.filter(prefix=text).first()
    return text if row is None else f"key:{row.pk}"


def usage_rows(question: UsageQuestion) -> QuerySet[Any, Any]:
    """Sums of the daily rows, ordered by their groups; lazily."""
    rows: QuerySet[Any, Any] = UsageDay.objects.filter(day__gte=question.first, day__lte=question.last)
    if question.tenant is not None:
        rows = rows.filter(tenant=question.tenant)
    if question.model is not None:
        rows = rows.filter(model=question.model)
    columns = [GROUPS[name] for name in question.group_by]
    # The sums' names must not be the columns': an aggregate would be taken of itself.
    sums = {f"sum_{name}": Sum(column) for name, column in _SUMS.items()}
    if not columns:
        rows = rows.annotate(everything=Value(1)).values("everything").annotate(**sums).order_by()
        return rows
    rows = rows.values(*columns).annotate(**sums).order_by(*columns)
    return rows


def usage_objects(question: UsageQuestion, *, offset: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
    """The report's rows as the API shows them."""
    rows = list(usage_rows(question)[offset : None if limit is None else offset + limit])
    names = key_names(row["tenant"] for row in rows if "tenant" in row)
    return [usage_object(question, row, names) for row in rows]


def usage_object(
    question: UsageQuestion, row: Mapping[str, Any], names: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    """One row: its groups, then its sums."""
    shown: dict[str, Any] = {}
    for name in question.group_by:
        value = row[GROUPS[name]]
        if name == "key":
            shown["key"], shown["key_name"] = names.get(value, (value, ""))
        else:
            shown[name] = value.isoformat() if isinstance(value, date) else value
    for name in _SUMS:
        value = row[f"sum_{name}"] or 0
        shown[name] = round(value, 3) if name.endswith("_seconds") else value
    shown["total_tokens"] = shown["prompt_tokens"] + shown["completion_tokens"]
    return shown


def key_names(tenants: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Public part and name of the keys among ``tenants``."""
    keys = {int(tenant[4:]): tenant for tenant in tenants if tenant.startswith("key:") and tenant[4:].isdigit()}
    found: dict[str, tuple[str, str]] = {}
    ordered = sorted(keys)
    for start in range(0, len(ordered), CHUNK_ROWS):
        rows = ApiKey.objects.filter(pk__in=ordered[start : start + CHUNK_ROWS]).values_list("pk", "prefix", "name")
        found |= {keys[pk]: (prefix, name) for pk, prefix, name in rows}
    return found


# --- comma-separated values --------------------------------------------------------------------


def csv_header(question: UsageQuestion) -> list[str]:
    """Names of the columns."""
    groups: list[str] = []
    for name in question.group_by:
        groups += ["key", "key_name"] if name == "key" else [name]
    return [*groups, *_SUMS, "total_tokens"]


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Lines of a file (RFC 4180); texts that a spreadsheet would compute are made plain by an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    for row in rows:
        writer.writerow(
            [f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell for cell in row]
        )
    return out.getvalue()


def csv_chunks(question: UsageQuestion) -> Iterator[str]:
    """The report as CSV, some hundred lines at a time, the first with the columns' names."""
    header = csv_header(question)
    yield csv_text([header])
    offset = 0
    while True:
        rows = usage_objects(question, offset=offset, limit=CHUNK_ROWS)
        if rows:
            yield csv_text([row[name] for name in header] for row in rows)
        if len(rows) < CHUNK_ROWS:
            return
        offset += CHUNK_ROWS
