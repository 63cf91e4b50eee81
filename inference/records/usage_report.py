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
from inference.models import ApiKey, EnergyPrice, UsageDay
from inference.records.energy_days import JOULES_PER_WH
from inference.records.energy_price import cost, energy_price
from inference.values.tenants import tenants_by_number

GROUPS = {"key": "tenant", "model": "model", "day": "day"}
"""Names to group usage by, with their columns."""
DEFAULT_DAYS = 30
FIRST_DAY = date(2000, 1, 1)
"""Earlier days are a mistake; the first ones of all have no ``DEFAULT_DAYS`` before them."""
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
_ENERGY = ("energy_wh", "energy_cost", "currency")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A query of the usage report.

    Attributes:
        first, last: Days (UTC), both included.
        group_by: Names of ``GROUPS``, in the order of the report's columns.
        tenant: The only tenant to report; None: all tenants.
        model: The only model to report; None: all models.
    """

    first: date
    last: date
    group_by: tuple[str, ...]
    tenant: str | None = None
    model: str | None = None


def usage_query(
    *, first: str | None, last: str | None, group_by: str | None, tenant: str | None, model: str | None
) -> UsageQuery:
    """Parse a query from the text of its parameters.

    Args:
        first, last: ISO dates; None: the last ``DEFAULT_DAYS`` days.
        group_by: Names of ``GROUPS`` separated by commas; None: all of them, an empty text: one sum.
        tenant, model: See ``UsageQuery``.

    Raises:
        InvalidRequest: A parameter is invalid; the error names it.
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
    return UsageQuery(since, until, tuple(names), tenant, model)


def _day(name: str, text: str) -> date:
    try:
        found = date.fromisoformat(text)
        if found < FIRST_DAY:
            raise ValueError(text)
        return found
    except ValueError:
        raise InvalidRequest(f"{name} is {text[:40]!r}, it must be a date such as 2026-11-21.", param=name) from None


def tenant_of_key(text: str) -> str:
    """Return the tenant of a key's public part; other texts (``local``, ``user:N``) are tenants already."""
    key = None if "\0" in text else ApiKey.objects.filter(prefix=text).values_list("pk", flat=True).first()
    return text if key is None else f"key:{key}"


def usage_rows(query: UsageQuery) -> QuerySet[Any, Any]:
    """Return a lazy query of the sums of the daily rows, ordered by their groups."""
    rows: QuerySet[Any, Any] = UsageDay.objects.filter(day__gte=query.first, day__lte=query.last)
    if query.tenant is not None:
        rows = rows.filter(tenant=query.tenant)
    if query.model is not None:
        rows = rows.filter(model=query.model)
    columns = [GROUPS[name] for name in query.group_by]
    # A sum named like its column would make Django aggregate the sum instead of the column.
    sums = {f"sum_{name}": Sum(column) for name, column in {**_SUMS, "joules": "joules"}.items()}
    if not columns:
        rows = rows.annotate(everything=Value(1)).values("everything").annotate(**sums).order_by()
        return rows
    rows = rows.values(*columns).annotate(**sums).order_by(*columns)
    return rows


def usage_objects(query: UsageQuery, *, offset: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
    rows = list(usage_rows(query)[offset : None if limit is None else offset + limit])
    names = key_names(row["tenant"] for row in rows if "tenant" in row)
    price = energy_price() if rows else EnergyPrice()
    return [usage_object(query, row, names, price) for row in rows]


def usage_object(
    query: UsageQuery, row: Mapping[str, Any], names: Mapping[str, tuple[str, str]], price: EnergyPrice
) -> dict[str, Any]:
    """Return one row in the API's form: its groups, then its sums; energy and cost are None where nothing is known."""
    shown: dict[str, Any] = {}
    for name in query.group_by:
        value = row[GROUPS[name]]
        if name == "key":
            shown["key"], shown["key_name"] = names.get(value, (value, ""))
        else:
            shown[name] = value.isoformat() if isinstance(value, date) else value
    for name in _SUMS:
        value = row[f"sum_{name}"] or 0
        shown[name] = round(value, 3) if name.endswith("_seconds") else value
    shown["total_tokens"] = shown["prompt_tokens"] + shown["completion_tokens"]
    joules = row["sum_joules"]
    amount = cost(joules, price)
    shown["energy_wh"] = None if joules is None else round(joules / JOULES_PER_WH, 6)
    shown["energy_cost"] = None if amount is None else round(amount, 9)
    shown["currency"] = None if amount is None else price.currency
    return shown


def key_names(tenants: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the public part and the name of each key among ``tenants``."""
    keys = tenants_by_number("key", tenants)
    found: dict[str, tuple[str, str]] = {}
    ordered = sorted(keys)
    for start in range(0, len(ordered), CHUNK_ROWS):
        rows = ApiKey.objects.filter(pk__in=ordered[start : start + CHUNK_ROWS]).values_list("pk", "prefix", "name")
        found |= {keys[pk]: (prefix, name) for pk, prefix, name in rows}
    return found


# --- comma-separated values --------------------------------------------------------------------


def csv_header(query: UsageQuery) -> list[str]:
    groups: list[str] = []
    for name in query.group_by:
        groups += ["key", "key_name"] if name == "key" else [name]
    return [*groups, *_SUMS, "total_tokens", *_ENERGY]


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV (RFC 4180); an apostrophe keeps spreadsheets from evaluating texts as formulas."""
    out = io.StringIO()
    writer = csv.writer(out)
    for row in rows:
        writer.writerow(
            [f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell for cell in row]
        )
    return out.getvalue()


def csv_chunks(query: UsageQuery) -> Iterator[str]:
    """Yield the report as CSV in chunks of ``CHUNK_ROWS`` lines; the first chunk is the header."""
    header = csv_header(query)
    yield csv_text([header])
    offset = 0
    while True:
        rows = usage_objects(query, offset=offset, limit=CHUNK_ROWS)
        if rows:
            yield csv_text([row[name] for name in header] for row in rows)
        if len(rows) < CHUNK_ROWS:
            return
        offset += CHUNK_ROWS
