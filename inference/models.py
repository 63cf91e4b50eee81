"""Rows of inference: API keys, usage, queued generations. Reading and writing is in ``auth``, ``usage`` and ``jobs``.

JSON that users write or models generate is kept as text columns: PostgreSQL's jsonb refuses U+0000, which a
prompt may hold, and nothing here searches inside it.
"""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from inference.batches import models as batch_models  # noqa: F401 (Django finds an application's rows here)
from inference.principal import DEFAULT_SCOPES

_EMPTY = "Empty: the server's default for all keys."


def default_scopes() -> list[str]:
    """Of keys that were made without naming scopes."""
    return list(DEFAULT_SCOPES)


class ApiKey(models.Model):
    """A key for programs; see ``inference.auth`` for its form. The key itself is not stored."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, unique=True, help_text="The key's public part.")
    digest = models.CharField(max_length=64, help_text="HMAC-SHA-256 of the key under the site's secret.")
    scopes = models.JSONField(default=default_scopes, help_text="What it may do; names of inference.principal.SCOPES.")
    allowed_models = models.JSONField(default=list, blank=True, help_text="Served names; empty: all models.")
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    max_concurrent = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    max_queued_lines = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @staticmethod
    def valid() -> Q:
        """Keys that weren't revoked and haven't expired."""
        return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=timezone.now()))


class UsageRecord(models.Model):
    """One request and what it used: the request log. Written in bulk, after the request; removed when it is old.

    ``tenant`` names the key without a foreign key: one deleted row must not hold up the others' records.
    """

    request_id = models.CharField(max_length=64, unique=True)
    tenant = models.CharField(max_length=64)
    endpoint = models.CharField(max_length=16)
    model = models.CharField(max_length=128)
    outcome = models.CharField(max_length=32, help_text="completed, cancelled, or the code of the error.")
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    ttft_s = models.FloatField(null=True, blank=True)
    duration_s = models.FloatField()
    queue_s = models.FloatField(default=0, help_text="Before the engine took it, a load of the model included.")
    engine_s = models.FloatField(default=0, help_text="In the engine, beside others.")
    prompt = models.TextField(blank=True, default="", help_text="JSON, cut; empty unless contents are logged.")
    answer = models.TextField(blank=True, default="", help_text="JSON, cut; empty unless contents are logged.")
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]
        verbose_name = "request"
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["tenant", "created_at"], name="usage_by_tenant"),
            models.Index(fields=["created_at"], name="usage_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.request_id}: {self.prompt_tokens} + {self.completion_tokens}"


class UsageDay(models.Model):
    """What one tenant used of one model on one day (UTC); grows with each flush of the records and is kept."""

    day = models.DateField()
    tenant = models.CharField(max_length=64)
    model = models.CharField(max_length=128)
    requests = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    engine_s = models.FloatField(default=0)
    queue_s = models.FloatField(default=0)

    class Meta:
        ordering: ClassVar[list[str]] = ["-day", "tenant", "model"]
        verbose_name = "daily usage"
        verbose_name_plural = "daily usage"
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["day", "tenant", "model"], name="usage_day_unique")
        ]
        indexes: ClassVar[list[Any]] = [models.Index(fields=["tenant", "day"], name="usage_day_by_tenant")]

    def __str__(self) -> str:
        return f"{self.day} {self.tenant} {self.model}"


class JobState(models.TextChoices):
    """Stages of a queued generation. The last three never change."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    SUCCEEDED = "succeeded", "succeeded"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"


TERMINAL_JOB_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class GenerationJob(models.Model):
    """A queued generation. The row is the job; every message about it is only a hint.

    ``fence`` grows with each claim, and every write of a worker carries the fence it claimed with: a worker
    that lost its lease can't write any more. ``attempts`` counts the claims since it last got on (stored a
    chunk), without those that were handed back in good order.
    The primary key is the order of arrival.
    """

    job_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False, help_text="The public id.")
    tenant = models.CharField(max_length=64)
    batch_label = models.CharField(max_length=100, blank=True, default="")
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001 (null: no key; unique)
    digest = models.CharField(max_length=64, help_text="SHA-256 of the request: one idempotency key, one request.")
    endpoint = models.CharField(max_length=16)
    model = models.CharField(max_length=128, help_text="Served model name, as submitted.")
    checkpoint_id = models.UUIDField()
    plan = models.TextField(help_text="GenerationPlan.to_dict(), JSON; its seed is set, so that attempts agree.")
    priority = models.IntegerField(default=0)

    state = models.CharField(max_length=12, choices=JobState.choices, default=JobState.QUEUED)
    attempts = models.PositiveIntegerField(default=0)
    fence = models.PositiveBigIntegerField(default=0)
    owner = models.CharField(max_length=100, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    not_before = models.DateTimeField(null=True, blank=True, help_text="A retry waits until then.")
    cancel_requested = models.BooleanField(default=False)

    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0, help_text="Progress while it runs.")
    num_chunks = models.PositiveIntegerField(default=0)
    keep_events = models.BooleanField(default=False, help_text="The chunks stay after the end.")
    result = models.TextField(blank=True, default="", help_text="The answer, JSON.")
    error = models.TextField(blank=True, default="", help_text="BlazrError.to_dict(), JSON.")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(
                fields=["tenant", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="job_idempotency_key",
            ),
            models.CheckConstraint(
                condition=Q(state=JobState.RUNNING, lease_until__isnull=False)
                | (~Q(state=JobState.RUNNING) & Q(lease_until__isnull=True)),
                name="job_lease_iff_running",
            ),
        ]
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["priority", "id"], name="job_claim_order", condition=Q(state=JobState.QUEUED)),
            models.Index(fields=["lease_until"], name="job_leases", condition=Q(state=JobState.RUNNING)),
            models.Index(fields=["tenant", "-id"], name="job_by_tenant"),
            models.Index(fields=["batch_label"], name="job_by_label"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} ({self.state})"

    @property
    def is_finished(self) -> bool:
        """Whether the job has reached a state that never changes."""
        return self.state in TERMINAL_JOB_STATES


class JobChunk(models.Model):
    """Events of a running job, stored as they come, so that a later attempt goes on from them.

    Numbers are dense from 0 across attempts. Deleted when the job ends (the result holds all of it), unless its
    events are kept.
    """

    job = models.ForeignKey(GenerationJob, on_delete=models.CASCADE, related_name="chunks")
    number = models.PositiveIntegerField()
    events = models.TextField(help_text="A JSON list of GenerationEvents.")

    class Meta:
        ordering: ClassVar[list[str]] = ["number"]
        constraints: ClassVar[list[Any]] = [models.UniqueConstraint(fields=["job", "number"], name="job_chunk_number")]

    def __str__(self) -> str:
        return f"{self.job_id}[{self.number}]"


class StoredResponse(models.Model):
    """A response that its caller asked to be kept (``store: true``); see ``inference.stored_responses``.

    ``previous_id`` names the response before it without a foreign key: the older one may be deleted. One that runs in
    the background has a job, whose events say how far it is; its ``body`` is written again when it has ended.
    """

    response_id = models.CharField(max_length=64, unique=True)
    tenant = models.CharField(max_length=64)
    previous_id = models.CharField(max_length=64, blank=True, default="")
    body = models.TextField(help_text="The response object, JSON.")
    input_items = models.TextField(help_text="Its own input items, a JSON list.")
    job = models.OneToOneField(GenerationJob, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]
        indexes: ClassVar[list[Any]] = [models.Index(fields=["created_at"], name="response_by_age")]

    def __str__(self) -> str:
        return self.response_id
