"""Let schedules load and unload models, in any time zone, and keep what came of their runs.

Schedules made batches only, in UTC, and kept their last run in their own columns.
"""

import json

import django.db.models.deletion
from django.db import migrations, models
from django.utils import timezone

CHOICES = [("batch", "run a batch"), ("load", "load a model"), ("unload", "unload a model")]
OUTCOMES = [(name, name) for name in ("starting", "started", "skipped", "missed", "refused")]


def rename_permissions(apps, schema_editor):
    """Let the roles keep their permissions: a renamed model gets new ones, which nobody has."""
    Permission = apps.get_model("auth", "Permission")
    for row in Permission.objects.filter(codename__endswith="_batchschedule", content_type__app_label="inference"):
        action = row.codename.partition("_")[0]
        row.codename, row.name = f"{action}_schedule", f"Can {action} schedule"
        row.save(update_fields=["codename", "name"])


def move_columns(apps, schema_editor):
    """Name the files in a column of their own, keep them while they are needed, and make a row of the last run."""
    Schedule, ScheduleRun = apps.get_model("inference", "Schedule"), apps.get_model("inference", "ScheduleRun")
    StoredFile = apps.get_model("inference", "StoredFile")
    for row in Schedule.objects.order_by("pk").values("pk", "request", "last_run_at", "last_batch_id", "last_error"):
        try:
            request = json.loads(row["request"])
            file_id = str(request.pop("input_file_id"))[:40]
        except (ValueError, TypeError, AttributeError, KeyError):
            continue  # damaged: its next run says so
        Schedule.objects.filter(pk=row["pk"]).update(request=json.dumps(request), input_file_id=file_id)
        StoredFile.objects.filter(file_id=file_id, expires_at__gt=timezone.now()).update(expires_at=None)
        if row["last_run_at"] is None:
            continue
        ScheduleRun.objects.create(
            schedule_id=row["pk"],
            due_at=row["last_run_at"],
            claimed_at=row["last_run_at"],
            outcome="refused" if row["last_error"] else "started",
            batch_id="" if row["last_error"] else row["last_batch_id"],
            message=row["last_error"],
        )


class Migration(migrations.Migration):
    dependencies = [("inference", "0023_batch_paused_at")]

    operations = [
        migrations.RenameModel("BatchSchedule", "Schedule"),
        migrations.RunPython(rename_permissions, migrations.RunPython.noop),
        migrations.AddField("schedule", "name", models.CharField(max_length=100, blank=True, default="", help_text="For people.")),
        migrations.AddField("schedule", "action", models.CharField(max_length=10, choices=CHOICES, default="batch")),
        migrations.AddField("schedule", "time_zone", models.CharField(max_length=64, default="UTC", help_text="A name of the IANA database.")),
        migrations.AddField("schedule", "input_file_id", models.CharField(max_length=40, blank=True, default="", help_text="Of a batch.")),
        migrations.AddField("schedule", "model", models.CharField(max_length=256, blank=True, default="", help_text="Served name or alias.")),
        migrations.CreateModel(
            name="ScheduleRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("due_at", models.DateTimeField(help_text="When it was to be; of several missed ones, the last.")),
                ("claimed_at", models.DateTimeField(help_text="When a process took it, or took it again from one that had ended.")),
                ("is_manual", models.BooleanField(default=False, help_text="Somebody asked for it.")),
                ("outcome", models.CharField(max_length=10, choices=OUTCOMES, default="starting")),
                ("batch_id", models.CharField(max_length=40, blank=True, default="", help_text="What it made, or waited for.")),
                ("message", models.TextField(blank=True, default="", help_text="Why it made nothing.")),
                ("schedule", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="inference.schedule")),
            ],
            options={"ordering": ["-id"]},
        ),
        migrations.AddConstraint("schedulerun", models.UniqueConstraint(fields=["schedule"], condition=models.Q(outcome="starting"), name="run_starting_once")),
        migrations.AddIndex("schedulerun", models.Index(fields=["schedule", "-id"], name="run_by_schedule")),
        migrations.AddIndex("schedule", models.Index(fields=["input_file_id"], name="schedule_by_file", condition=~models.Q(input_file_id=""))),
        migrations.RunPython(move_columns, migrations.RunPython.noop),
        migrations.RemoveField("schedule", "last_run_at"),
        migrations.RemoveField("schedule", "last_batch_id"),
        migrations.RemoveField("schedule", "last_error"),
        migrations.AlterField("schedule", "tenant", models.CharField(max_length=64, help_text="What its runs count against.")),
        migrations.AlterField("schedule", "cron", models.CharField(max_length=100, help_text="Minute, hour, day of month, month, day of week.")),
        migrations.AlterField("schedule", "request", models.TextField(blank=True, default="", help_text="Other members of POST /v1/batches, JSON.")),
        migrations.AlterField("schedule", "is_enabled", models.BooleanField(default=True, help_text="False: it is paused.")),
        migrations.AlterField("schedule", "next_run_at", models.DateTimeField(help_text="Moving it on claims a run.")),
    ]
