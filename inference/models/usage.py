"""Usage of each request, its sums per day, and how requests went in spans of the last day."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class UsageRecord(models.Model):
    """One request and what it used: the request log. Written in bulk, after the request; removed when it is old.

    ``tenant`` names the key without a foreign key: one deleted row must not hold up the others' records.
    """

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"plan": dict, "phases": dict}

    request_id = models.CharField(max_length=64, unique=True)
    tenant = models.CharField(max_length=64)
    endpoint = models.CharField(max_length=16)
    model = models.CharField(max_length=128)
    outcome = models.CharField(max_length=32, help_text="completed, cancelled, or the code of the error.")
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    ttft_s = models.FloatField(null=True, blank=True)
    itl_s = models.FloatField(
        null=True, blank=True, help_text="Mean time between the tokens of an output, from the first delivery on."
    )
    cache_outcome = models.CharField(
        max_length=16,
        blank=True,
        default="",
        help_text="hit: all of the prompt but its last token was cached; else why not. Empty: not known.",
    )
    duration_s = models.FloatField()
    queue_s = models.FloatField(default=0, help_text="Before the engine took it, a load of the model included.")
    engine_s = models.FloatField(default=0, help_text="In the engine, beside others.")
    prompt = models.TextField(blank=True, default="", help_text="JSON, cut; empty unless contents are logged.")
    output = models.TextField(blank=True, default="", help_text="JSON, cut; empty unless contents are logged.")
    plan = models.TextField(blank=True, default="", help_text="JSON: what was asked for beside the prompts.")
    phases = models.TextField(blank=True, default="", help_text="JSON: measured seconds of each phase.")
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
    joules = models.FloatField(
        null=True, blank=True, help_text="An estimate: its part of what the model's devices used. Empty: not measured."
    )

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


class UsageSpan(models.Model):
    """How the requests of one model went that ended in one span of time; the model "" stands for all of them.

    Computed from the records once the span is over, and removed after a day. ``tokens_per_s`` and ``waiting`` are means
    of what the workers reported; empty where no worker was there, and in the spans of an hour and of a day.
    """

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"cache_outcomes": dict}

    begin = models.DateTimeField()
    length_s = models.PositiveIntegerField()
    model = models.CharField(max_length=128, blank=True, default="")
    requests = models.PositiveBigIntegerField(default=0)
    failures = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    ttft_p50_s = models.FloatField(null=True, blank=True)
    ttft_p95_s = models.FloatField(null=True, blank=True)
    itl_p50_s = models.FloatField(null=True, blank=True)
    itl_p95_s = models.FloatField(null=True, blank=True)
    tokens_per_s = models.FloatField(null=True, blank=True)
    waiting = models.FloatField(null=True, blank=True)
    cache_outcomes = models.TextField(blank=True, default="", help_text="Requests by cache_outcome, JSON.")

    class Meta:
        ordering: ClassVar[list[str]] = ["length_s", "begin", "model"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["length_s", "begin", "model"], name="usage_span_unique")
        ]

    def __str__(self) -> str:
        return f"{self.model or 'all models'} from {self.begin:%Y-%m-%d %H:%M}, {self.length_s} s"
