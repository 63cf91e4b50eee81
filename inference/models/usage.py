"""Usage of each request, and its sums per day."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


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
    output = models.TextField(blank=True, default="", help_text="JSON, cut; empty unless contents are logged.")
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
