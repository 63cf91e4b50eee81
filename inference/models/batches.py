"""Rows of batches, their lines and results, and webhook deliveries.

Reading and writing is in ``inference.files.services`` and the other modules of this package. JSON that users write or
models generate is kept as text, as in ``inference.models``.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

from django.db import models
from django.db.models import Q

from inference.models.readable_rows import DamagedRow, json_value


class BatchState(models.TextChoices):
    """OpenAI's states. The last four never change."""

    VALIDATING = "validating", "validating"
    IN_PROGRESS = "in_progress", "in progress"
    FINALIZING = "finalizing", "finalizing"
    CANCELLING = "cancelling", "cancelling"
    COMPLETED = "completed", "completed"
    FAILED = "failed", "failed"
    EXPIRED = "expired", "expired"
    CANCELLED = "cancelled", "cancelled"


TERMINAL_BATCH_STATES = (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)


class Batch(models.Model):
    """A file of requests that run when there is room.

    ``fence`` guards the work on the batch as a whole (validating, writing the files) as a line's guards the line.
    The counts are kept by the transactions that finish lines.
    """

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"metadata": dict, "errors": list, "checkpoints": dict}

    batch_id = models.CharField(max_length=40, unique=True)
    tenant = models.CharField(max_length=64)
    is_from_here = models.BooleanField(
        default=False,
        help_text="Submitted from this machine without a key: lines may have such a caller's options.",
    )
    endpoint = models.CharField(max_length=40, help_text="Path of the endpoint, as in each line's url.")
    input_file_id = models.CharField(max_length=40)
    num_lines = models.PositiveIntegerField(default=0, help_text="Of the input file, as it was counted at first.")
    input_sha256 = models.CharField(max_length=64)
    completion_window = models.CharField(max_length=16)
    metadata = models.TextField(blank=True, default="", help_text="JSON.")
    priority = models.IntegerField(default=0, help_text="Lower goes first.")
    output_expires_s = models.PositiveBigIntegerField(null=True, blank=True)
    webhook_url = models.TextField(blank=True, default="")
    webhook_secret = models.CharField(max_length=120, blank=True, default="")
    schedule_id = models.CharField(max_length=40, blank=True, default="", help_text="The schedule that made it.")
    request_key = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001 (null: no key; unique)
    request_digest = models.CharField(max_length=64, blank=True, default="", help_text="Of the request with the key.")

    state = models.CharField(max_length=12, choices=BatchState.choices, default=BatchState.VALIDATING)
    ending = models.CharField(
        max_length=12, blank=True, default="", help_text="Final state once the files are written."
    )
    fence = models.PositiveBigIntegerField(default=0)
    owner = models.CharField(max_length=100, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    checkpoints = models.TextField(blank=True, default="", help_text="JSON: checkpoint id to served model name.")

    num_total = models.PositiveIntegerField(default=0)
    num_completed = models.PositiveIntegerField(default=0)
    num_failed = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    reasoning_tokens = models.PositiveBigIntegerField(default=0)
    errors = models.TextField(blank=True, default="", help_text="JSON list: why the file failed validation.")
    output_file_id = models.CharField(max_length=40, blank=True, default="")
    error_file_id = models.CharField(max_length=40, blank=True, default="")

    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(null=True, blank=True, help_text="No line starts until it is resumed.")
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "inference"
        ordering: ClassVar[list[str]] = ["-id"]
        verbose_name_plural = "batches"
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(
                fields=["tenant", "request_key"], condition=Q(request_key__isnull=False), name="batch_request_key"
            ),
        ]
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["tenant", "-id"], name="batch_by_tenant"),
            models.Index(fields=["state", "priority", "id"], name="batch_open", condition=Q(ended_at__isnull=True)),
            models.Index(fields=["input_sha256"], name="batch_by_digest"),
        ]

    def __str__(self) -> str:
        return f"{self.batch_id} ({self.state})"

    @property
    def is_finished(self) -> bool:
        """Whether it has reached a state that never changes."""
        return self.state in TERMINAL_BATCH_STATES

    @property
    def is_paused(self) -> bool:
        """Whether its lines wait for a resume; what ends or has ended isn't paused any more."""
        is_running = self.state in (BatchState.VALIDATING, BatchState.IN_PROGRESS) and not self.ending
        return self.paused_at is not None and is_running

    @property
    def checkpoint_names(self) -> dict[str, str]:
        """Served model names by checkpoint id; empty if damaged: then they are missing in the usage."""
        try:
            return cast("dict[str, str]", json_value(self, "checkpoints"))
        except DamagedRow:
            return {}

    @property
    def num_open(self) -> int:
        """Lines without a result."""
        return max(0, self.num_total - self.num_completed - self.num_failed)


class LineState(models.TextChoices):
    """Stages of a line. The last two never change."""

    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    COMPLETED = "completed", "completed"
    FAILED = "failed", "failed"


class BatchLine(models.Model):
    """One request of a batch; the primary key is the order of the file.

    ``attempts`` counts claims, without those that were handed back in good order.
    """

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"body": dict}

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField(help_text="Line of the input file, from 1.")
    custom_id = models.CharField(max_length=512)
    checkpoint_id = models.UUIDField()
    body = models.TextField(help_text="The request's body, JSON.")
    state = models.CharField(max_length=10, choices=LineState.choices, default=LineState.QUEUED)
    attempts = models.PositiveIntegerField(default=0)
    fence = models.PositiveBigIntegerField(default=0)
    owner = models.CharField(max_length=100, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    not_before = models.DateTimeField(null=True, blank=True, help_text="A retry waits until then.")

    class Meta:
        app_label = "inference"
        ordering: ClassVar[list[str]] = ["id"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["batch", "custom_id"], name="line_custom_id"),
        ]
        indexes: ClassVar[list[Any]] = [
            models.Index(
                fields=["batch", "checkpoint_id", "id"], name="line_claim_order", condition=Q(state=LineState.QUEUED)
            ),
            models.Index(fields=["lease_until"], name="line_leases", condition=Q(state=LineState.RUNNING)),
        ]

    def __str__(self) -> str:
        return f"line {self.number} ({self.state})"


class BatchResult(models.Model):
    """What became of a line: written once, in the transaction that ends the line."""

    line = models.OneToOneField(BatchLine, on_delete=models.CASCADE, primary_key=True, related_name="result")
    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="results")
    is_error = models.BooleanField()
    payload = models.TextField(help_text="The line of the output or error file, JSON.")
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    reasoning_tokens = models.PositiveIntegerField(default=0)
    queue_s = models.FloatField(default=0.0)
    engine_s = models.FloatField(default=0.0)
    finished_at = models.DateTimeField()

    class Meta:
        app_label = "inference"
        indexes: ClassVar[list[Any]] = [models.Index(fields=["batch", "finished_at"], name="result_by_time")]

    def __str__(self) -> str:
        return f"result of line {self.line_id}"


class WebhookDelivery(models.Model):
    """A message that is owed to somebody's server; tried until it is taken or given up."""

    message_id = models.CharField(max_length=64, unique=True, help_text="The same for every try.")
    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="deliveries")
    payload = models.TextField(help_text="The body that is sent.")
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True, blank=True, help_text="Null: delivered, or given up.")
    delivered_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True, default="")
    created_at = models.DateTimeField()

    class Meta:
        app_label = "inference"
        verbose_name_plural = "webhook deliveries"
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["next_attempt_at"], name="delivery_due", condition=Q(next_attempt_at__isnull=False))
        ]

    def __str__(self) -> str:
        return self.message_id
