"""Keys and usage: what each key may do and has used; new keys are shown once, with a line to try."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import Sum
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables

from inference.access.api_keys import api_key_create, api_key_revoke
from inference.errors import BlazrError, InvalidRequest
from inference.models import ApiKey, UsageDay
from inference.models.readable_rows import readable_rows
from inference.pages.callers import Caller, usage_callers
from inference.pages.charts import sparkline
from inference.pages.first_steps import curl_line
from inference.records.energy_days import GENERATED_WEIGHT, JOULES_PER_WH, MeasuredEnergy, energy_measured
from inference.records.energy_price import cost, energy_price
from inference.records.usage_report import csv_chunks, usage_objects, usage_query
from inference.values.limits import KeyLimits
from inference.values.principal import DEFAULT_SCOPES, SCOPES
from models_registry import selectors
from models_registry.views import StaffAction, StaffPage, StaffView

VIEW_USAGE, VIEW_KEYS = "inference.view_usageday", "inference.view_apikey"
NUM_KEYS = 200
NUM_ROWS = 200
SPARK_DAYS = 30
MAX_FIELD_CHARS = 200
UNDIVIDED_SHARE = 0.001
"""Less of the energy than this belongs to no request by rounding, and because the last minute isn't divided yet."""
GROUPINGS = {
    "key,model": "key and model",
    "key": "key",
    "model": "model",
    "day": "day",
    "day,key,model": "day, key, model",
}
_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_queued_lines")
_LIMIT_WORDS = ("requests a minute", "tokens a minute", "requests at a time", "lines that wait or run")


class KeysPage(StaffPage):
    """Keys with their usage of the last days, and sums of usage."""

    template_name = "registry/keys.html"
    section = "keys"
    permission_required = VIEW_USAGE

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Serve the page, or its table of usage as CSV."""
        if request.GET.get("format") != "csv":
            return super().get(request, **kwargs)
        try:
            query = _usage_query(request.GET)
        except BlazrError as error:
            return self.refused(error)
        headers = {"Content-Disposition": f'attachment; filename="usage-{query.first}-{query.last}.csv"'}
        return StreamingHttpResponse(csv_chunks(query), content_type="text/csv; charset=utf-8", headers=headers)  # type: ignore[return-value]

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return keys, if the account may see them, and the sums that the address asks for."""
        query = self.request.GET
        return {**keys_context(self.request.user, query), **form_context(), "is_open": "new" in query}


class KeyCreate(StaffView):
    """Make a key. The page that answers shows it, once; a form with a mistake is shown again."""

    section = "keys"
    permission_required = (VIEW_USAGE, VIEW_KEYS, "inference.add_apikey")
    http_method_names = ("post",)

    @sensitive_variables("key", "curl")
    def post(self, request: HttpRequest) -> HttpResponse:
        """Create the key that the form describes."""
        form = request.POST
        try:
            row, key = api_key_create(
                name=form.get("name", "").strip(),
                expires_at=_expiry(form.get("expires", "")),
                scopes=form.getlist("scopes"),
                models=form.getlist("models"),
                limits=KeyLimits(*(_limit(form, name) for name in _LIMITS)),
            )
        except BlazrError as error:
            context = {**keys_context(request.user, QueryDict()), **form_context(form, error=error.message)}
            context |= {"section": self.section, "is_open": True}
            return render(request, "registry/keys.html", context, status=error.http_status)
        model = selectors.checkpoint_list().values_list("served_model_name", flat=True).first() or "MODEL"
        curl = curl_line(request, model, key)
        context = {"section": "keys", "row": row, "key": key, "curl": curl, "words": key_words(row)}
        response = render(request, "registry/key_made.html", context, status=201)
        response["Cache-Control"] = "no-store"
        return response


class KeyRevoke(StaffAction):
    """End a key for good."""

    section = "keys"
    permission_required = "inference.change_apikey"

    def act(self, **kwargs: Any) -> str:
        """Revoke it."""
        api_key_revoke(prefix=kwargs["prefix"])
        return reverse("keys")


def keys_context(reader: Any, address: QueryDict) -> dict[str, Any]:
    """Return keys, if an account may see them, and sums of usage.

    Args:
        reader: The account that is signed in.
        address: Which sums.
    """
    query = _usage_query(address)
    sees_keys = reader.has_perm(VIEW_KEYS)
    csv_address = address.copy()
    csv_address.pop("new", None)
    csv_address["format"] = "csv"
    rows = usage_objects(query, limit=NUM_ROWS + 1)
    measured = energy_measured(query.first, query.last)
    callers = usage_callers(rows)
    return {
        "keys": key_rows() if sees_keys else [],
        "sees_keys": sees_keys,
        "usage": [_usage_row(row, query.group_by, callers) for row in rows[:NUM_ROWS]],
        "has_more": len(rows) > NUM_ROWS,
        "groups": query.group_by,
        "group_by": address.get("group_by", "key,model"),
        "groupings": GROUPINGS.items(),
        "first": query.first,
        "last": query.last,
        "csv_address": f"?{csv_address.urlencode()}",
        "energy": None if measured is None else _energy_words(measured),
        "price": energy_price(),
    }


def form_context(form: QueryDict | None = None, *, error: str = "") -> dict[str, Any]:
    """Return what the form of a new key needs.

    Args:
        form: The fields as they were sent; None: an empty form.
        error: Why they were refused.
    """
    sent = QueryDict() if form is None else form
    models, scopes = sent.getlist("models"), DEFAULT_SCOPES if form is None else sent.getlist("scopes")
    names = selectors.checkpoint_list().values_list("served_model_name", flat=True)
    return {
        "form": {name: sent.get(name, "")[:MAX_FIELD_CHARS] for name in ("name", "expires")},
        "form_error": error,
        "models": [(name, name in models) for name in names],
        "scopes": [(name, text, name in scopes) for name, text in SCOPES.items()],
        "limit_fields": [
            (name, words, sent.get(name, "")[:MAX_FIELD_CHARS])
            for name, words in zip(_LIMITS, _LIMIT_WORDS, strict=True)
        ],
    }


def key_rows() -> list[dict[str, Any]]:
    """Return the newest keys with their state, what they may do in words, and their usage of each of the last days."""
    now = timezone.now()
    used, energy, price = usage_by_day(), energy_by_tenant(), energy_price()
    rows = []
    for row in readable_rows(ApiKey.objects.order_by("-pk"), NUM_KEYS):
        state = "revoked" if row.revoked_at else "expired" if row.expires_at and row.expires_at <= now else "valid"
        days, joules = used.get(f"key:{row.pk}", []), energy.get(f"key:{row.pk}")
        rows.append(
            {
                "row": row,
                "state": state,
                "mark": "ready" if state == "valid" else "unloaded",
                "words": key_words(row),
                "spark": sparkline(days),
                "tokens": sum(days),
                "most": max(days, default=0),
                "last_day": _last_day(days),
                "energy_wh": None if joules is None else joules / JOULES_PER_WH,
                "energy_cost": cost(joules, price),
            }
        )
    return rows


def key_words(row: ApiKey) -> dict[str, str]:
    """Return what a key may do and how much, in words."""
    limits = [
        f"{value:,} {words}"
        for name, words in zip(_LIMITS, _LIMIT_WORDS, strict=True)
        if (value := getattr(row, name)) is not None
    ]
    return {
        "scopes": ", ".join(row.scopes),
        "models": ", ".join(row.allowed_models) or "all models",
        "limits": ", ".join(limits) or "the server's limits",
    }


def usage_by_day() -> dict[str, list[int]]:
    """Return the tokens of each tenant on each of the last ``SPARK_DAYS`` days, oldest first."""
    last = timezone.now().date()
    first = last - timedelta(days=SPARK_DAYS - 1)
    found: dict[str, list[int]] = {}
    columns = ("tenant", "day", "prompt_tokens", "completion_tokens")
    for tenant, day, prompt, completion in UsageDay.objects.filter(day__gte=first).values_list(*columns):
        days = found.setdefault(tenant, [0] * SPARK_DAYS)
        if isinstance(day, date) and first <= day <= last:
            days[(day - first).days] += prompt + completion
    return found


def energy_by_tenant() -> dict[str, float]:
    """Return the joules of each tenant over the last ``SPARK_DAYS`` days; one of whom nothing was measured has none."""
    last = timezone.now().date()
    rows = UsageDay.objects.filter(day__gt=last - timedelta(days=SPARK_DAYS), day__lte=last, joules__gte=0)
    return dict(rows.order_by().values_list("tenant").annotate(joules=Sum("joules")))


def _energy_words(measured: MeasuredEnergy) -> dict[str, Any]:
    """Return what was measured, and by which rule it is divided."""
    return {
        "total_wh": measured.joules / JOULES_PER_WH,
        "work_wh": measured.work_joules / JOULES_PER_WH,
        "undivided_wh": max(0.0, measured.work_joules - measured.divided_joules) / JOULES_PER_WH,
        "has_rest": measured.work_joules - measured.divided_joules > UNDIVIDED_SHARE * measured.work_joules,
        "weight": GENERATED_WEIGHT,
    }


def _last_day(days: list[int]) -> date | None:
    """Return the last day on which the key was used; None: on none of the last ``SPARK_DAYS``."""
    back = next((back for back, tokens in enumerate(reversed(days)) if tokens), None)
    return None if back is None else timezone.now().date() - timedelta(days=back)


def _usage_query(query: QueryDict) -> Any:
    return usage_query(
        first=query.get("from") or None,
        last=query.get("to") or None,
        group_by=query.get("group_by", "key,model"),
        tenant=None,
        model=None,
    )


def _usage_row(row: dict[str, Any], groups: tuple[str, ...], callers: Mapping[str, Caller]) -> dict[str, Any]:
    """Return a row of sums with its cells of groups; ``caller`` is whom a cell names."""
    cells = [{"caller": callers[row["key"]]} if name == "key" else {"text": row[name]} for name in groups]
    return {**row, "cells": cells}


def _expiry(text: str) -> datetime | None:
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"the expiry is {text[:40]!r}; it must be a date such as 2027-01-31.", param="expires"
        ) from None
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _limit(form: QueryDict, name: str) -> int | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 11):
        raise InvalidRequest(f"{name} is {text[:40]!r}; it must be a whole number, or empty.", param=name)
    return int(text)
