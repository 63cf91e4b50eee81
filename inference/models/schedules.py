"""Rows of schedules and their runs. Reading and writing is in ``inference.schedules``."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q


class ScheduleAction(models.TextChoices):
    """What a schedule does at its times."""

    BATCH = "batch", "run a batch"
    LOAD = "load", "load a model"
    UNLOAD = "unload", "unload a model"


class Schedule(models.Model):
    """Does one thing again and again: makes a batch of a file, or loads or unloads a model."""

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"request": dict}

    schedule_id = models.CharField(max_length=40, unique=True)
    tenant = models.CharField(max_length=64, help_text="What its runs count against.")
    name = models.CharField(max_length=100, blank=True, default="", help_text="For people.")
    action = models.CharField(max_length=10, choices=ScheduleAction.choices, default=ScheduleAction.BATCH)
    cron = models.CharField(max_length=100, help_text="Minute, hour, day of month, month, day of week.")
    time_zone = models.CharField(max_length=64, default="UTC", help_text="A name of the IANA database.")
    input_file_id = models.CharField(max_length=40, blank=True, default="", help_text="Of a batch.")
    request = models.TextField(blank=True, default="", help_text="Other members of POST /v1/batches, JSON.")
    model = models.CharField(max_length=256, blank=True, default="", help_text="Served name or alias.")
    is_enabled = models.BooleanField(default=True, help_text="False: it is paused.")
    next_run_at = models.DateTimeField(help_text="Moving it on claims a run.")
    created_at = models.DateTimeField()

    class Meta:
        app_label = "inference"
        ordering: ClassVar[list[str]] = ["-id"]
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["is_enabled", "next_run_at"], name="schedule_due"),
            models.Index(fields=["input_file_id"], name="schedule_by_file", condition=~Q(input_file_id="")),
        ]

    def __str__(self) -> str:
        return f"{self.name or self.schedule_id} ({self.cron} {self.time_zone})"


class RunOutcome(models.TextChoices):
    """What came of a run. The last four never change."""

    STARTING = "starting", "starting"
    STARTED = "started", "started"
    SKIPPED = "skipped", "skipped"
    MISSED = "missed", "missed"
    REFUSED = "refused", "refused"


class ScheduleRun(models.Model):
    """One time of a schedule, or several that were missed together."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="runs")
    due_at = models.DateTimeField(help_text="When it was to be; of several missed ones, the last.")
    claimed_at = models.DateTimeField(help_text="When a process took it, or took it again from one that had ended.")
    is_manual = models.BooleanField(default=False, help_text="Somebody asked for it.")
    outcome = models.CharField(max_length=10, choices=RunOutcome.choices, default=RunOutcome.STARTING)
    batch_id = models.CharField(max_length=40, blank=True, default="", help_text="What it made, or waited for.")
    message = models.TextField(blank=True, default="", help_text="Why it made nothing.")

    class Meta:
        app_label = "inference"
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["schedule"], condition=Q(outcome="starting"), name="run_starting_once"),
        ]
        indexes: ClassVar[list[Any]] = [models.Index(fields=["schedule", "-id"], name="run_by_schedule")]

    def __str__(self) -> str:
        return f"{self.due_at:%Y-%m-%d %H:%M} ({self.outcome})"
