"""Durable generation jobs and the text that they have produced so far."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.db import models
from django.db.models import Count, Q


class JobState(models.TextChoices):
    """Stages of a queued generation. The last three never change."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    SUCCEEDED = "succeeded", "succeeded"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"


TERMINAL_JOB_STATES = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class JobQuerySet(models.QuerySet["GenerationJob"]):
    """Queries on jobs that more than one folder needs."""

    def count_by_state(self) -> dict[str, int]:
        """Number of jobs in each state, 0 where there are none."""
        counted = self.order_by().values_list("state").annotate(number=Count("pk")).values_list("state", "number")
        return dict.fromkeys(JobState.values, 0) | dict(counted)


class GenerationJob(models.Model):
    """A queued generation. The row is the job; every message about it is only a hint.

    ``fence`` grows with each claim, and every write of a worker carries the fence it claimed with: a worker
    that lost its lease can't write any more. ``attempts`` counts the claims since it last got on (stored a
    chunk), without those that were handed back in good order; the last one counts once it runs alone.
    The primary key is the order of arrival.
    """

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"plan": dict, "result": dict, "error": dict}
    JSON_MEMBERS: ClassVar[dict[str, tuple[str, ...]]] = {"plan": ("endpoint", "model", "prompts", "params")}

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
    size_bytes = models.PositiveBigIntegerField(
        default=0, help_text="Of the plan; at the end of the result and the kept events, too."
    )
    num_chunks = models.PositiveIntegerField(default=0)
    keep_events = models.BooleanField(default=False, help_text="The chunks stay after the end.")
    result = models.TextField(blank=True, default="", help_text="The answer, JSON.")
    error = models.TextField(blank=True, default="", help_text="BlazrError.to_dict(), JSON.")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = JobQuerySet.as_manager()

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
            models.Index(
                fields=["tenant", "priority", "id"], name="job_claim_by_tenant", condition=Q(state=JobState.QUEUED)
            ),
            # Workers ask each second whether a job waits that was in two crashes; hardly any is.
            models.Index(fields=["attempts"], name="job_suspects", condition=Q(state=JobState.QUEUED, attempts__gte=2)),
            models.Index(fields=["lease_until"], name="job_leases", condition=Q(state=JobState.RUNNING)),
            models.Index(fields=["tenant", "-id"], name="job_by_tenant"),
            models.Index(fields=["tenant", "size_bytes"], name="job_bytes_by_tenant"),
            models.Index(fields=["finished_at"], name="job_by_end", condition=Q(finished_at__isnull=False)),
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

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"events": list}

    job = models.ForeignKey(GenerationJob, on_delete=models.CASCADE, related_name="chunks")
    number = models.PositiveIntegerField()
    events = models.TextField(help_text="A JSON list of GenerationEvents.")

    class Meta:
        ordering: ClassVar[list[str]] = ["number"]
        constraints: ClassVar[list[Any]] = [models.UniqueConstraint(fields=["job", "number"], name="job_chunk_number")]

    def __str__(self) -> str:
        return f"{self.job_id}[{self.number}]"
