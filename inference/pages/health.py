"""Whether a server is healthy, what failed lately, and what has changed, in lines for the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.urls import reverse
from django.utils import timezone

from inference.models import ApiKey, UsageRecord, UsageSpan
from inference.models.readable_rows import readable_rows
from inference.records.usage_spans import ALL_MODELS, DAY, HOUR, MINUTE, QUARTER, UNFAILED, last_begin, spans_read
from models_registry.models import AliasRevision
from models_registry.selectors import checkpoint_list

NUM_ERRORS = 6
NUM_CHANGES = 8
MIN_REQUESTS, MAX_FAILED_SHARE = 20, 0.05
"""Failures are a problem above this share of so many requests."""


def problems(
    state: Mapping[str, Any],
    workers: Sequence[Mapping[str, Any]],
    failures: tuple[int, int],
    *,
    sees_requests: bool = True,
) -> list[dict[str, str]]:
    """Return what is wrong now, the worst first, each with a link that leads on; empty: nothing is.

    Args:
        state: The registry's overview.
        workers: Its workers with their state as ``mark`` and ``words``.
        failures: The failed requests of the last hour, and all of them.
        sees_requests: Whether the account may see single requests.
    """
    found = [_line("bad", state["notice"])] if state["notice"] else []
    if not workers and not state["notice"]:
        found.append(_line("bad", "No worker is alive. Requests wait until one is."))
    found += [
        _line("bad" if worker["mark"] == "failed" else "warn", f"The worker {worker['worker_id']}: {worker['words']}.")
        for worker in workers
        if worker["mark"] != "ready"
    ]
    for row in state["checkpoints"]:
        if row["live"]["status"] == "failed":
            words = f"{row['served_model_name']} could not be loaded: {row['live']['error'] or 'no reason is known.'}"
            found.append(_line("bad", words, reverse("model", args=[row["id"]])))
        elif row["state"] == "missing":
            words = f"The files of {row['served_model_name']} are missing."
            found.append(_line("warn", words, reverse("model", args=[row["id"]])))
    failed, total = failures
    if total >= MIN_REQUESTS and failed > MAX_FAILED_SHARE * total:
        words = f"{failed:,} of {total:,} requests failed in the last hour."
        found.append(_line("warn", words, reverse("requests") + "?outcome=failed" if sees_requests else ""))
    return found


def _line(kind: str, words: str, url: str = "") -> dict[str, str]:
    return {"kind": kind, "words": words, "url": url}


def num_failures(now: datetime) -> tuple[int, int]:
    """Return the failed requests of the last hour, and all of them."""
    oldest = last_begin(now, HOUR) - timedelta(seconds=MINUTE)
    rows = spans_read(UsageSpan.objects.filter(length_s=HOUR, begin__gte=oldest, model=ALL_MODELS))
    newest = max(rows, key=lambda row: row.begin, default=None)
    return (newest.failures, newest.requests) if newest else (0, 0)


def failed_requests() -> list[UsageRecord]:
    """Return the newest failed requests of the last day.

    The spans say where to look, so that no million of records is read for one that failed: first what no span has
    yet, then the minutes and quarters with failures.
    """
    since = timezone.now() - timedelta(seconds=DAY)
    spans = spans_read(UsageSpan.objects.filter(model=ALL_MODELS, length_s__in=(MINUTE, QUARTER), begin__gte=since))
    ends = [row.begin + timedelta(seconds=row.length_s) for row in spans]
    split = min((row.begin for row in spans if row.length_s == MINUTE), default=max(ends, default=since))
    found = _failed(since=max(ends, default=since), until=None, limit=NUM_ERRORS)
    for row in sorted(spans, key=lambda row: row.begin, reverse=True):
        if not row.failures or (row.length_s == QUARTER and row.begin >= split):
            continue
        until = row.begin + timedelta(seconds=row.length_s)
        until = min(until, split) if row.length_s == QUARTER else until
        found += _failed(since=row.begin, until=until, limit=NUM_ERRORS - len(found))
        if len(found) >= NUM_ERRORS:
            break
    return found


def _failed(*, since: datetime, until: datetime | None, limit: int) -> list[UsageRecord]:
    rows = UsageRecord.objects.filter(created_at__gte=since).exclude(outcome__in=UNFAILED).defer("prompt", "output")
    return readable_rows((rows if until is None else rows.filter(created_at__lt=until)).order_by("-created_at"), limit)


def changes(state: Mapping[str, Any], *, sees_keys: bool) -> list[dict[str, Any]]:
    """Return what has changed in the last day, the newest first: moments, words and links.

    Args:
        state: The registry's overview.
        sees_keys: Whether the account may see keys.
    """
    since = timezone.now() - timedelta(days=1)
    found: list[tuple[datetime, str, str]] = []
    for model in state["checkpoints"]:
        name, url = model["served_model_name"], reverse("model", args=[model["id"]])
        for item in model["live"]["departures"]:
            found.append((_moment(item["at"]), f"{name} was unloaded: {item['reason']}", url))
    for worker in state["workers"]:
        if worker["started_at"]:
            found.append((_moment(worker["started_at"]), f"The worker {worker['worker_id']} started", ""))
    registered = checkpoint_list().filter(created_at__gte=since).order_by("-created_at")
    for row in readable_rows(registered, NUM_CHANGES):
        found.append((row.created_at, f"{row.served_model_name} was registered", reverse("model", args=[row.pk])))
    revisions = AliasRevision.objects.filter(created_at__gte=since).select_related("alias").order_by("-created_at")
    for revision in readable_rows(revisions, NUM_CHANGES):
        by = f" by {revision.author_name}" if revision.author_name else ""
        found.append((revision.created_at, f"{revision.alias.name} means {revision.meaning}{by}", ""))
    if sees_keys:
        found += _key_changes(since)
    newest = sorted((item for item in found if item[0] >= since), key=lambda item: item[0], reverse=True)
    return [{"at": at, "words": words, "url": url} for at, words, url in newest[:NUM_CHANGES]]


def _key_changes(since: datetime) -> list[tuple[datetime, str, str]]:
    url = reverse("keys")
    made = readable_rows(ApiKey.objects.filter(created_at__gte=since).order_by("-created_at"), NUM_CHANGES)
    ended = readable_rows(ApiKey.objects.filter(revoked_at__gte=since).order_by("-revoked_at"), NUM_CHANGES)
    found = [(row.created_at, f"The key {row.name} was made", url) for row in made]
    return found + [(row.revoked_at, f"The key {row.name} was revoked", url) for row in ended if row.revoked_at]


def _moment(seconds: float) -> datetime:
    """Return a moment of a heartbeat; one that can't be is as old as can be."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC)
