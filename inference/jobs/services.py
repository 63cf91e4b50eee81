"""Submit and cancel queued generations for callers.

A submission stores all of its jobs or none. A request with a known idempotency key returns the job that it made before.
All functions are synchronous and use the database: call them off the event loop.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import orjson
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.db.models.functions import Now
from django.utils import timezone

from inference.access.line_limits import lines_reserved
from inference.errors import BlazrError, Conflict, InvalidRequest, RequestTooLarge, StorageFull, UnsupportedFeature
from inference.host.fault_points import fault_point
from inference.jobs import hints
from inference.jobs.selectors import chunks_end, job_get, num_open
from inference.models import GenerationJob, JobState
from inference.records.job_usage import jobs_charge
from inference.serving.image_parts import plan_with_images
from inference.serving.served_models import plan_for_model, served_model_read
from inference.states.services import plan_with_state
from inference.values.plan import GenerationPlan
from inference.values.request_key import RequestKey
from inference.values.served_model import ServedModel

if TYPE_CHECKING:
    from inference.values.principal import Principal

MAX_JOBS_PER_SUBMIT = 50_000
MAX_PLAN_BYTES = 4 << 20
INSERT_BATCH = 500
MAX_BYTES_PER_TENANT = 16 << 30
MAX_BYTES = 64 << 30
"""Bytes of the plans, results and kept events of all stored jobs of a tenant, and of the server."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One job of a submission.

    Attributes:
        plan: The checked request; one prompt, no stream.
        idempotency_key: The same key and plan return the same job.
        request_key: The key of the whole submission; ``idempotency_key`` is derived from it.
        keep_events: The events stay with the job after its end, so that they can be streamed again.
    """

    plan: GenerationPlan
    idempotency_key: str | None = None
    request_key: RequestKey | None = None
    keep_events: bool = False


def jobs_submit(*, requests: Sequence[JobRequest], principal: Principal, batch_label: str = "") -> list[GenerationJob]:
    """Store jobs in one transaction: all of them or none.

    A request whose idempotency key is known returns the job that it made before, whatever the limits are by now.

    Args:
        batch_label: Common name of the jobs, by which they can be listed.

    Returns:
        One row per request, in order.

    Raises:
        InvalidRequest: A request is wrong; the message says which.
        UnknownModel: A model doesn't exist.
        StorageFull: The stored jobs would have too many bytes.
        Conflict: An idempotency key of a job came before with another request.
        IdempotencyKeyReused: The submission's key came before with another submission.
    """
    if not requests:
        raise InvalidRequest("jobs must not be an empty list.", param="jobs")
    if len(requests) > MAX_JOBS_PER_SUBMIT:
        raise RequestTooLarge(
            f"{len(requests)} jobs in one submission, at most {MAX_JOBS_PER_SUBMIT} are allowed.", param="jobs"
        )
    if len(batch_label) > 100 or "\0" in batch_label:
        raise InvalidRequest("batch_label has at most 100 characters, without U+0000.", param="batch_label")
    known = _known_jobs(requests, principal)
    models: dict[str, ServedModel] = {}
    rows = [
        _new_row(number, request, principal, batch_label, models, is_only=len(requests) == 1)
        for number, (request, earlier) in enumerate(zip(requests, known, strict=True))
        if earlier is None
    ]
    if rows:
        request_keys = {item.idempotency_key: item.request_key for item in requests if item.request_key is not None}
        with lines_reserved(principal=principal, lines=len(rows), count=lambda: num_open(principal.tenant)):
            try:
                with transaction.atomic():
                    rows = _store(rows, principal, request_keys)
            except IntegrityError:
                # Another submission stored the same idempotency key between our look and our insert.
                with transaction.atomic():
                    rows = _store(rows, principal, request_keys)
    stored = iter(rows)
    return [earlier or next(stored) for earlier in known]


def _known_jobs(requests: Sequence[JobRequest], principal: Principal) -> list[GenerationJob | None]:
    """Return the job that each request made before, None for a new one; a key that is wrong is refused later."""
    keys = [item.idempotency_key for item in requests if item.idempotency_key is not None]
    jobs = _jobs_of_keys([key for key in keys if "\0" not in key], principal.tenant)
    known: list[GenerationJob | None] = []
    for request in requests:
        earlier = jobs.get(request.idempotency_key) if request.idempotency_key is not None else None
        if earlier is not None:
            _check_digest(earlier, _digest(request), request.request_key)
        known.append(earlier)
    return known


def _jobs_of_keys(keys: Sequence[str], tenant: str) -> dict[str, GenerationJob]:
    """Return the jobs by their keys, without requests and results: there may be thousands of large ones."""
    rows = GenerationJob.objects.filter(tenant=tenant).defer("plan", "result")
    return {
        cast("str", row.idempotency_key): row
        for start in range(0, len(keys), INSERT_BATCH)
        for row in rows.filter(idempotency_key__in=keys[start : start + INSERT_BATCH])
    }


def _digest(request: JobRequest) -> str:
    """Return the digest of the request as it came; the row has the seed that was drawn for it."""
    if request.request_key is not None:
        return request.request_key.digest
    return hashlib.sha256(orjson.dumps(request.plan.to_dict(), option=orjson.OPT_SORT_KEYS)).hexdigest()


def _check_digest(earlier: GenerationJob, digest: str, request_key: RequestKey | None) -> None:
    if earlier.digest == digest:
        return
    if request_key is not None:
        request_key.check_digest(earlier.digest)
    raise Conflict(
        f"The idempotency key {(earlier.idempotency_key or '')[:60]!r} was used with another request; "
        "choose a new key.",
        param="idempotency_key",
    )


def _check_bytes(tenant: str, size_bytes: int) -> None:
    limits = (
        (GenerationJob.objects.filter(tenant=tenant), MAX_BYTES_PER_TENANT, "your stored jobs"),
        (GenerationJob.objects.all(), MAX_BYTES, "the stored jobs of all callers"),
    )
    for rows, limit, whose in limits:
        used = rows.order_by().aggregate(size=Sum("size_bytes"))["size"] or 0
        if used + size_bytes > limit:
            raise StorageFull(
                f"The jobs have {size_bytes:,} bytes and {whose} have {used:,}; the limit is {limit:,} bytes. "
                f"Finished jobs are deleted after {settings.BLAZR_RETENTION_DAYS} days (BLAZR_RETENTION_DAYS); "
                "submit fewer, or send the requests without jobs.",
                param="jobs",
            )


def _new_row(
    number: int,
    request: JobRequest,
    principal: Principal,
    batch_label: str,
    models: dict[str, ServedModel],
    *,
    is_only: bool,
) -> GenerationJob:
    plan = request.plan
    try:
        if plan.stream:
            raise UnsupportedFeature("a job has no stream; leave stream out.", param="stream")
        if len(plan.prompts) > 1:
            raise UnsupportedFeature(
                f"a job takes one prompt, this one has {len(plan.prompts)}; submit a list of jobs.", param="prompt"
            )
        principal.check_options(priority=plan.priority, keep_alive_s=plan.keep_alive_s)
        if plan.model not in models:
            models[plan.model] = served_model_read(plan.model)
        model = models[plan.model]
        seen = plan_with_images(plan_for_model(plan, model), model, principal.tenant)
        resolved = plan_with_state(seen, principal.tenant)
        if request.idempotency_key is not None and "\0" in request.idempotency_key:
            raise InvalidRequest("idempotency_key must not hold U+0000.", param="idempotency_key")
        stored = orjson.dumps(resolved.with_seed().to_dict())
        if len(stored) > MAX_PLAN_BYTES:
            raise RequestTooLarge(f"a job has at most {MAX_PLAN_BYTES} bytes, this one has {len(stored)}.")
    except BlazrError as error:
        if is_only:
            raise
        raise type(error)(f"job {number}: {error.message}", param=f"jobs.{number}.body.{error.param or ''}") from None
    return GenerationJob(
        tenant=principal.tenant,
        batch_label=batch_label,
        idempotency_key=request.idempotency_key,
        digest=_digest(request),
        endpoint=plan.endpoint,
        model=model.name,  # an alias may mean another one later, and usage is summed by models
        checkpoint_id=uuid.UUID(model.checkpoint_id),
        plan=stored.decode(),
        size_bytes=len(stored),
        priority=plan.priority,
        keep_events=request.keep_events,
        created_at=timezone.now(),
    )


def _store(
    rows: Sequence[GenerationJob], principal: Principal, request_keys: Mapping[str | None, RequestKey]
) -> list[GenerationJob]:
    keys = [row.idempotency_key for row in rows if row.idempotency_key is not None]
    known = _jobs_of_keys(keys, principal.tenant)
    stored: list[GenerationJob] = []
    new: list[GenerationJob] = []
    for row in rows:
        earlier = known.get(row.idempotency_key) if row.idempotency_key is not None else None
        if earlier is None:
            # A failed attempt of this function may have set an id.
            row.pk = None
            new.append(row)
            stored.append(row)
            if row.idempotency_key is not None:
                known[row.idempotency_key] = row
        else:
            _check_digest(earlier, row.digest, request_keys.get(row.idempotency_key))
            stored.append(earlier)
    if new:
        _check_bytes(principal.tenant, sum(row.size_bytes for row in new))
        GenerationJob.objects.bulk_create(new, batch_size=INSERT_BATCH)
        fault_point("jobs.store")
        transaction.on_commit(hints.wake_workers, robust=True)
    return stored


def job_cancel(*, job_id: str | uuid.UUID, principal: Principal) -> GenerationJob:
    """Cancel a job: at once if it waits, with the worker's next heartbeat if it runs. A hint brings that one forward.

    Finished jobs stay as they are.

    Raises:
        UnknownRequest: There is none, or it belongs to another tenant.
    """
    row = job_get(job_id=job_id, principal=principal)
    with transaction.atomic():
        same = GenerationJob.objects.filter(pk=row.pk)
        if same.filter(state=JobState.QUEUED).update(state=JobState.CANCELLED, finished_at=Now()):
            chunks_end([row.pk])
            jobs_charge(same, outcome="cancelled")  # for an earlier attempt
        else:
            # Running, or claimed just now: the worker sees the flag at its next heartbeat.
            same.filter(state=JobState.RUNNING).update(cancel_requested=True)
        row.refresh_from_db()
    if row.state == JobState.RUNNING:
        hints.wake_workers()
    return row
