"""What the overview shows of the requests of the last hour or day: curves, a row per model, the prompt cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import QueryDict
from django.utils import timezone

from inference.models import UsageSpan
from inference.models.readable_rows import json_value
from inference.pages.cache_words import CACHE_WORDS
from inference.pages.charts import Chart, Series, draw, sparkline
from inference.records.usage_spans import ALL_MODELS, DAY, HOUR, PARTS, PERIODS, kept_begins, spans_read
from models_registry.templatetags.registry import duration, number, seconds

SPANS = {"hour": HOUR, "day": DAY}
_ENDS = {"hour": "60 min|45|30|15|now", "day": "24 h|18|12|6|now"}
MAX_MODELS = 20
SLOWER = 2.0
"""The hour's first tokens are called slow from so many times the day's on."""
MIN_REQUESTS = 20


def traffic(query: QueryDict) -> dict[str, Any]:
    """Return what the overview shows of the last hour or day, for the models that the address names."""
    name = query.get("span", "hour")
    name = name if name in SPANS else "hour"
    now = timezone.now()
    whole, part = SPANS[name], PARTS[SPANS[name]]
    totals, day = _totals(now, whole), _totals(now, DAY)
    chosen = query.get("model", ALL_MODELS)
    chosen = chosen if chosen in totals else ALL_MODELS
    begins = kept_begins(now, part)
    points = _points(begins, part)
    total = totals.get(chosen)
    return {
        "span": name,
        "span_words": f"the last {name}",
        "chosen": chosen,
        "total": total,
        "charts": _charts(points.get(chosen, {}), begins, total, name),
        "rows": [
            _row(item, points.get(item.model, {}), begins, day.get(item.model))
            for item in sorted(totals.values(), key=lambda item: (-item.requests, item.model))
            if item.model != ALL_MODELS
        ][:MAX_MODELS],
        "cache": None if total is None else cache_parts(total),
    }


def model_traffic(model: str) -> list[dict[str, Any]]:
    """Return how the requests of one model went in the last hour and in the last day, each with its curves."""
    now, found = timezone.now(), []
    for name, whole in SPANS.items():
        begins = kept_begins(now, PARTS[whole])
        points = _points(begins, PARTS[whole], (model,)).get(model, {})
        item = _totals(now, whole, (model, ALL_MODELS)).get(model)
        rates = [point.tokens_per_s for point in points.values() if point.tokens_per_s is not None]
        found.append(
            {
                "name": name,
                "item": item,
                "cached": percent(item.cached_tokens, item.prompt_tokens) if item else 0,
                "mean": sum(rates) / len(begins) if rates else None,
                "peak": max(rates, default=None),
                "charts": _charts(points, begins, item, name),
            }
        )
    return found


def _totals(now: datetime, length_s: int, models: Collection[str] = ()) -> dict[str, UsageSpan]:
    """Return the newest span of an hour or a day, by model; empty if it is too old to be called the last one.

    Args:
        models: Those that are read, ``ALL_MODELS`` among them, which has a row in each span; empty: all.
    """
    oldest = kept_begins(now, length_s)[-1] - timedelta(seconds=PERIODS[length_s])
    rows = spans_read(_of_models(models).filter(length_s=length_s, begin__gte=oldest))
    newest = max((row.begin for row in rows), default=None)
    return {row.model: row for row in rows if row.begin == newest}


def _of_models(models: Collection[str]) -> QuerySet[UsageSpan]:
    return UsageSpan.objects.filter(model__in=models) if models else UsageSpan.objects.all()


def _points(
    begins: Sequence[datetime], length_s: int, models: Collection[str] = ()
) -> dict[str, dict[datetime, UsageSpan]]:
    rows = _of_models(models).filter(length_s=length_s, begin__gte=begins[0]).defer("cache_outcomes")
    found: dict[str, dict[datetime, UsageSpan]] = {}
    for row in spans_read(rows):
        found.setdefault(row.model, {})[row.begin] = row
    return found


def _charts(
    points: Mapping[datetime, UsageSpan], begins: Sequence[datetime], total: UsageSpan | None, name: str
) -> list[Chart]:
    """Return the curves; those without a value are left out."""

    def values(column: str, empty: float | None = None) -> list[float | None]:
        return [getattr(points[begin], column) if begin in points else empty for begin in begins]

    if not points:
        return []
    end = begins[-1] + timedelta(seconds=PARTS[SPANS[name]])
    moments = [f"{duration((end - begin).total_seconds())} ago" for begin in begins]
    plans: list[tuple[str, str, list[Series], Callable[[float], str]]] = [
        (
            "First token",
            _two(total, "ttft"),
            [Series("p95", values("ttft_p95_s")), Series("p50", values("ttft_p50_s"))],
            seconds,
        ),
        (
            "Between tokens",
            _two(total, "itl"),
            [Series("p95", values("itl_p95_s")), Series("p50", values("itl_p50_s"))],
            seconds,
        ),
        _load_plan("Tokens per second", "tokens/s", values("tokens_per_s", 0.0)),
        _load_plan("Waiting requests", "waiting", values("waiting", 0.0)),
    ]
    drawn = [
        draw(title, words, series, moments=moments, ends=_ENDS[name], text=text) for title, words, series, text in plans
    ]
    return [chart for chart in drawn if chart is not None]


def _load_plan(
    title: str, name: str, values: list[float | None]
) -> tuple[str, str, list[Series], Callable[[float], str]]:
    known = [value for value in values if value is not None]
    words = f"mean {number(sum(known) / len(known))}, up to {number(max(known))}" if known else ""
    return title, words, [Series(name, values)], number


def _row(
    item: UsageSpan, points: Mapping[datetime, UsageSpan], begins: Sequence[datetime], day: UsageSpan | None
) -> dict[str, Any]:
    """Return a model's row: its span, its rate as a curve, and whether its first tokens are slower than the day's."""
    rates = [(points[begin].tokens_per_s or 0.0) if begin in points else 0.0 for begin in begins]
    usual = None if day is None else day.ttft_p95_s
    is_slow = (
        item.length_s == HOUR
        and item.requests >= MIN_REQUESTS
        and usual is not None
        and (item.ttft_p95_s or 0.0) >= SLOWER * usual
    )
    return {
        "item": item,
        "rates": sparkline(rates),
        "last": len(begins) - 1,
        "peak": max(rates),
        "waiting": max((point.waiting or 0.0 for point in points.values()), default=0.0),
        "cached": percent(item.cached_tokens, item.prompt_tokens),
        "usual": usual,
        "is_slow": is_slow,
    }


def cache_parts(item: UsageSpan) -> dict[str, Any]:
    """Return how much of the prompts was cached, and the requests by what was found, the most frequent first."""
    counts = {
        name: count
        for name, count in json_value(item, "cache_outcomes").items()
        if name in CACHE_WORDS and type(count) is int and count > 0
    }
    return {
        "cached": percent(item.cached_tokens, item.prompt_tokens),
        "prompt_tokens": item.prompt_tokens,
        "number": sum(counts.values()),
        "parts": [
            {"name": CACHE_WORDS[name].name, "what": CACHE_WORDS[name].what, "number": count}
            for name, count in sorted(counts.items(), key=lambda pair: -pair[1])
        ],
    }


def percent(part: int, whole: int) -> int:
    return round(100 * part / whole) if whole else 0


def _two(total: UsageSpan | None, name: str) -> str:
    """Return the percentiles of a span's latency in words."""
    if total is None:
        return ""
    p50, p95 = getattr(total, f"{name}_p50_s"), getattr(total, f"{name}_p95_s")
    return "" if p50 is None or p95 is None else f"p50 {seconds(p50)} (dashed), p95 {seconds(p95)}"
