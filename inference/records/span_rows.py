"""Compute how the requests of a span of time went, from their usage records: counts, tokens and exact percentiles."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import orjson
from django.db.models import Sum

from inference.models import UsageRecord, UsageSpan
from inference.records.usage_spans import ALL_MODELS, MINUTE, QUARTER, UNFAILED, Load

CHUNK_ROWS = 2000
_COLUMNS = (
    "model",
    "outcome",
    "cache_outcome",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "ttft_s",
    "itl_s",
)
_MAX_S = 1e9
_MAX_TOKENS = 1 << 40


@dataclass(slots=True)
class _Requests:
    """What is counted of one model."""

    requests: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cache_outcomes: Counter[str] = field(default_factory=Counter)
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    itl_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, outcome: Any, cache_outcome: Any, tokens: tuple[Any, Any, Any], ttft_s: Any, itl_s: Any) -> None:
        """Count one record; what a damaged row has instead of a number counts as nothing."""
        self.requests += 1
        self.failures += outcome not in UNFAILED
        prompt, cached, completion = (
            value if isinstance(value, int) and 0 <= value <= _MAX_TOKENS else 0 for value in tokens
        )
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.completion_tokens += completion
        if cache_outcome:
            self.cache_outcomes[str(cache_outcome)[:16]] += 1
        for values, value in ((self.ttft_s, ttft_s), (self.itl_s, itl_s)):
            if isinstance(value, float) and 0 <= value < _MAX_S:
                values.append(value)

    def merge(self, other: _Requests) -> None:
        """Count what ``other`` has counted, too."""
        self.requests += other.requests
        self.failures += other.failures
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.cache_outcomes.update(other.cache_outcomes)
        self.ttft_s.extend(other.ttft_s)
        self.itl_s.extend(other.itl_s)

    def columns(self) -> dict[str, Any]:
        """Return the columns of the span."""
        ttft, itl = percentiles(self.ttft_s), percentiles(self.itl_s)
        return {
            "requests": self.requests,
            "failures": self.failures,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "cache_outcomes": orjson.dumps(self.cache_outcomes).decode(),
            "ttft_p50_s": ttft[0],
            "ttft_p95_s": ttft[1],
            "itl_p50_s": itl[0],
            "itl_p95_s": itl[1],
        }


def percentiles(values: array[float]) -> tuple[float, float] | tuple[None, None]:
    """Return the values of nearest rank at 50 and 95 percent: of n values the n/2th and the 0.95 nth, rounded up."""
    number = len(values)
    if not number:
        return None, None
    ranks = [-(-number * percent // 100) - 1 for percent in (50, 95)]
    # NumPy lets go of the interpreter meanwhile, so that the engine's thread goes on beside a million values.
    ordered = np.partition(np.frombuffer(values), ranks)
    return float(ordered[ranks[0]]), float(ordered[ranks[1]])


def spans_write(*, begin: datetime, length_s: int, loads: Mapping[str, Load] | None = None) -> int:
    """Compute and store the spans of all models that begin at a moment; those that are there stay as they are.

    Args:
        loads: What the workers reported, by served name; None: nobody asked them.

    Returns:
        The number of computed spans; 0 if nothing happened.
    """
    rows = span_rows(begin=begin, length_s=length_s, loads=loads)
    UsageSpan.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def span_rows(*, begin: datetime, length_s: int, loads: Mapping[str, Load] | None = None) -> list[UsageSpan]:
    """Return the spans of all models, the first one for all of them together; nothing is stored."""
    counted = _count(begin, length_s)
    reported = _mean_loads(begin, length_s) if length_s == QUARTER else loads
    active = {name for name, load in (reported or {}).items() if load.tokens_per_s or load.waiting}
    # Batches of deleted models have no name; they count in the sum only.
    models = sorted((counted.keys() | active) - {ALL_MODELS})
    if not counted and not models:
        return []
    total = _Requests()
    for item in counted.values():
        total.merge(item)
    rows = [UsageSpan(begin=begin, length_s=length_s, model=ALL_MODELS, **total.columns())]
    rows += [
        UsageSpan(begin=begin, length_s=length_s, model=model, **counted.get(model, _Requests()).columns())
        for model in models
    ]
    if reported is not None:
        for row in rows:
            seen = [load for model, load in reported.items() if row.model in (ALL_MODELS, model)]
            row.tokens_per_s = sum(load.tokens_per_s for load in seen)
            row.waiting = sum(load.waiting for load in seen)
    return rows


def _count(begin: datetime, length_s: int) -> dict[str, _Requests]:
    """Read the records of a span once, and count them by model."""
    records = UsageRecord.objects.filter(created_at__gte=begin, created_at__lt=begin + timedelta(seconds=length_s))
    found: dict[str, _Requests] = {}
    for row in records.order_by().values_list(*_COLUMNS).iterator(chunk_size=CHUNK_ROWS):
        model, outcome, cache_outcome, *tokens, ttft_s, itl_s = row
        name = str(model)[:128]
        item = found.get(name)
        if item is None:
            item = found[name] = _Requests()
        item.add(outcome, cache_outcome, tuple(tokens), ttft_s, itl_s)
    return found


def _mean_loads(begin: datetime, length_s: int) -> dict[str, Load] | None:
    """Return the means over the minutes of a span, None if nobody reported; a model without a row did nothing."""
    minutes = UsageSpan.objects.filter(
        length_s=MINUTE, begin__gte=begin, begin__lt=begin + timedelta(seconds=length_s), waiting__isnull=False
    )
    sums = minutes.order_by().values_list("model").annotate(tokens=Sum("tokens_per_s"), requests=Sum("waiting"))
    number = length_s / MINUTE
    found = {str(model): Load((tokens or 0.0) / number, (requests or 0.0) / number) for model, tokens, requests in sums}
    return {model: load for model, load in found.items() if model != ALL_MODELS} if found else None
