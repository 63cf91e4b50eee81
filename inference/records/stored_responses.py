"""Write, read, delete and sweep stored responses.

A row is written when its response has ended, before the client gets the end, so that the client can use the id at once.
The row of a background response is written at its start, with its job, and updated by the first reader of its end.
All functions query the database synchronously: call them outside of the event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson
from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet, Sum
from django.utils import timezone

from inference.errors import NotFound, StorageFull
from inference.models import TERMINAL_JOB_STATES, GenerationJob, JobState, StoredResponse
from inference.models.readable_rows import readable_rows
from inference.records.job_usage import jobs_charge
from inference.values.principal import Principal

Item = dict[str, Any]

SWEEP_BATCH = 500
MAX_BYTES_PER_TENANT = 4 << 30
MAX_BYTES = 32 << 30
"""Bytes of the stored responses of a tenant, and of the server, with their inputs."""
USED_CACHE_S = 5.0
"""Seconds for which a process keeps the sums: each response that is to be stored asks for them."""
_used: dict[str | None, tuple[float, int]] = {}
"""Tenant (None: all) → (time of the query, bytes)."""


def response_bytes_check(principal: Principal) -> None:
    """Refuse a response that is to be stored, before it is generated.

    The length of a response isn't known before its end, so responses that run may exceed the limits together.

    Raises:
        StorageFull: The stored responses of the caller, or of all callers, have reached their limit.
    """
    for tenant, limit, whose in (
        (principal.tenant, MAX_BYTES_PER_TENANT, "Your stored responses"),
        (None, MAX_BYTES, "The stored responses of all callers"),
    ):
        used = _used_bytes(tenant)
        if used >= limit:
            raise StorageFull(
                f"{whose} have {used:,} bytes; the limit is {limit:,} bytes. Delete responses that aren't needed "
                "(DELETE /v1/responses/{id}), or send store: false. Responses are deleted after "
                f"{settings.BLAZR_RESPONSE_RETENTION_DAYS} days (BLAZR_RETENTION_DAYS; 0: never).",
                param="store",
            )


def _used_bytes(tenant: str | None) -> int:
    now = time.monotonic()
    read_at, used = _used.get(tenant, (-math.inf, 0))
    if now - read_at > USED_CACHE_S:
        rows = StoredResponse.objects.all() if tenant is None else StoredResponse.objects.filter(tenant=tenant)
        used = rows.order_by().aggregate(size=Sum("size_bytes"))["size"] or 0
        for name in [name for name, (at, _) in list(_used.items()) if now - at > USED_CACHE_S]:
            _used.pop(name, None)
        _used[tenant] = now, used
    return used


def response_store(
    *, body: Mapping[str, Any], items: Sequence[Item], principal: Principal, job: GenerationJob | None = None
) -> StoredResponse:
    """Store a response.

    Args:
        items: The response's own input items, without those of previous responses.
        principal: The caller, who owns the response.
        job: The job that generates a background response.
    """
    body_text, items_text = orjson.dumps(body), orjson.dumps(list(items))
    return StoredResponse.objects.create(
        response_id=body["id"],
        tenant=principal.tenant,
        previous_id=body["previous_response_id"] or "",
        body=body_text.decode(),
        input_items=items_text.decode(),
        size_bytes=len(body_text) + len(items_text),
        job=job,
        created_at=timezone.now(),
    )


def responses_of(principal: Principal) -> QuerySet[StoredResponse]:
    """Return the responses that ``principal`` owns; nobody else can read them."""
    return StoredResponse.objects.filter(tenant=principal.tenant)


def response_get(*, response_id: str, principal: Principal) -> StoredResponse:
    """Return one response.

    Raises:
        NotFound: No response has this id, another caller owns it, or its row is damaged.
    """
    rows = [] if "\0" in response_id else readable_rows(responses_of(principal).filter(response_id=response_id), 1)
    if not rows:
        raise NotFound(
            f"There is no response with the id {response_id[:80]!r}; it was not stored, was deleted, or is too old.",
            param="response_id",
        )
    return rows[0]


def response_finish(row: StoredResponse, body: Mapping[str, Any]) -> None:
    """Write the final body of a background response, unless it was deleted; every reader writes the same body."""
    body_text = orjson.dumps(body)
    row.body = body_text.decode()
    row.size_bytes = len(body_text) + len(row.input_items.encode())
    StoredResponse.objects.filter(pk=row.pk).update(body=row.body, size_bytes=row.size_bytes)


def response_delete(*, response_id: str, principal: Principal) -> None:
    """Delete a response and its job; the worker stops a background response whose job is deleted.

    Raises:
        NotFound: No response has this id, or another caller owns it.
    """
    _delete([response_get(response_id=response_id, principal=principal)])


def responses_sweep() -> int:
    """Delete responses without an open job, older than ``BLAZR_RETENTION_DAYS`` (0: none); return their number."""
    if not settings.BLAZR_RESPONSE_RETENTION_DAYS:
        return 0
    limit = timezone.now() - timedelta(days=settings.BLAZR_RESPONSE_RETENTION_DAYS)
    open_jobs = GenerationJob.objects.filter(pk=OuterRef("job"), state__in=(JobState.QUEUED, JobState.RUNNING))
    deleted = 0
    while True:
        old = StoredResponse.objects.filter(~Exists(open_jobs), created_at__lt=limit).order_by("created_at")
        rows = list(old.only("pk", "job_id")[:SWEEP_BATCH])
        if not rows:
            return deleted
        _delete(rows)
        deleted += len(rows)


def _delete(rows: Sequence[StoredResponse]) -> None:
    with transaction.atomic():
        StoredResponse.objects.filter(pk__in=[row.pk for row in rows]).delete()
        jobs = GenerationJob.objects.filter(pk__in=[row.job_id for row in rows if row.job_id is not None])
        unfinished = jobs.exclude(state__in=TERMINAL_JOB_STATES).order_by("pk")
        jobs_charge(unfinished.select_for_update(), outcome="cancelled")
        jobs.delete()
