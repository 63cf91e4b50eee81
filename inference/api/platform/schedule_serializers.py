"""Request and response schemas of schedules."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.api.openai.batch_schemas import CRON_HELP, TIME_ZONE_HELP, BatchRequestSerializer, WebhookSerializer
from inference.api.schemas import _one_of
from inference.dialects.fields import StrictBooleanField, StrictCharField
from inference.dialects.strict_serializer import StrictSerializer
from inference.models import RunOutcome, ScheduleAction

_ACTION_HELP = "Run a batch, load a model, or unload one."


class ScheduleBatchRequestSerializer(BatchRequestSerializer):
    """``batch``: the body of POST /v1/batches."""

    def to_internal_value(self, data: Any) -> Any:
        """Refuse unknown members; null counts as absent, as in a body of its own."""
        if not isinstance(data, dict):
            return super().to_internal_value(data)
        for name in data:
            if name not in self.fields:
                raise serializers.ValidationError({name[:80]: "is not a member of batch; remove it."})
        return super().to_internal_value({name: value for name, value in data.items() if value is not None})


class ScheduleChangeSerializer(StrictSerializer):
    """Body of PATCH /api/schedules/{id}: what is to change."""

    name = StrictCharField(required=False, allow_blank=True, max_length=100, help_text="For people.")
    cron = StrictCharField(required=False, max_length=100, help_text=CRON_HELP)
    time_zone = StrictCharField(required=False, max_length=64, help_text=TIME_ZONE_HELP)
    action = serializers.ChoiceField(required=False, choices=ScheduleAction.values, help_text=_ACTION_HELP)
    batch = ScheduleBatchRequestSerializer(
        required=False, help_text="For the action batch: what each batch is made of."
    )
    model = StrictCharField(required=False, max_length=256, help_text="For the actions load and unload.")
    paused = StrictBooleanField(required=False, help_text="true: its times pass without a run.")


class ScheduleRequestSerializer(ScheduleChangeSerializer):
    """Body of POST /api/schedules."""

    cron = StrictCharField(max_length=100, help_text=CRON_HELP)
    action = serializers.ChoiceField(choices=ScheduleAction.values, help_text=_ACTION_HELP)


class ScheduleBatchSerializer(serializers.Serializer[Any]):
    """What the batches of a schedule are made of."""

    input_file_id = serializers.CharField(help_text="It doesn't expire while the schedule is there.")
    endpoint = serializers.CharField()
    completion_window = serializers.CharField()
    metadata = serializers.DictField(allow_null=True)
    priority = serializers.IntegerField()
    output_expires_after = serializers.DictField(allow_null=True)
    webhook = WebhookSerializer(allow_null=True)


class ScheduleRunSerializer(serializers.Serializer[Any]):
    """A run of a schedule."""

    object = _one_of("schedule.run")
    due_at = serializers.IntegerField(help_text="When it was to be; of several missed times, the last.")
    outcome = _one_of(*RunOutcome.values)
    manual = serializers.BooleanField(help_text="Somebody asked for it.")
    batch_id = serializers.CharField(allow_null=True, help_text="The batch that it made, or that it was skipped for.")
    message = serializers.CharField(allow_null=True, help_text="Why nothing was started.")


class ScheduleSerializer(serializers.Serializer[Any]):
    """A schedule."""

    id = serializers.CharField()
    object = _one_of("schedule")
    name = serializers.CharField()
    action = _one_of(*ScheduleAction.values)
    cron = serializers.CharField()
    time_zone = serializers.CharField()
    words = serializers.CharField(help_text="When it runs.")
    batch = ScheduleBatchSerializer(allow_null=True)
    model = serializers.CharField(allow_null=True)
    paused = serializers.BooleanField()
    owner = serializers.CharField(help_text="key:N, user:N or local: what its runs count against.")
    created_at = serializers.IntegerField()
    next_run_at = serializers.IntegerField(allow_null=True, help_text="Null: it is paused.")
    runs = ScheduleRunSerializer(
        many=True, help_text="The last ones, newest first; in lists the last one, and the last one that was started."
    )


class ScheduleListSerializer(serializers.Serializer[Any]):
    """Schedules, newest first."""

    object = _one_of("list")
    data = ScheduleSerializer(many=True)  # type: ignore[assignment]


class ScheduleDeletedSerializer(serializers.Serializer[Any]):
    """The schedule was deleted."""

    id = serializers.CharField()
    object = _one_of("schedule")
    deleted = serializers.BooleanField()


class SchedulePreviewSerializer(serializers.Serializer[Any]):
    """What an expression means."""

    object = _one_of("schedule.preview")
    cron = serializers.CharField()
    time_zone = serializers.CharField()
    words = serializers.CharField()
    next_run_times = serializers.ListField(child=serializers.CharField(), help_text="ISO 8601, in the time zone.")
