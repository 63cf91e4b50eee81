"""Request and response schemas of files and batches."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.api.schemas import _one_of
from inference.batches.line_requests import ENDPOINT_KINDS
from inference.dialects.fields import JSONObjectField, StrictCharField, StrictIntegerField
from inference.dialects.openai.sampling_fields import MAX_PRIORITY
from inference.dialects.strict_serializer import StrictSerializer
from inference.files.services import UPLOAD_PURPOSES

CRON_HELP = "Minute, hour, day of month, month, day of week; such as '0 3 * * *'. At least 5 minutes apart."
TIME_ZONE_HELP = "A name of the IANA database, such as Europe/Berlin; default UTC."


class FileUploadSerializer(serializers.Serializer[Any]):
    """The form of POST /v1/files; read by ``file_upload``."""

    file = serializers.FileField(help_text="JSON lines for a batch, or an image.")
    purpose = _one_of(*UPLOAD_PURPOSES, help_text="batch, or vision for an image.")
    expires_after = serializers.DictField(
        required=False, help_text="anchor: created_at, seconds: 3600 to 2592000; as expires_after[anchor] and so on."
    )


class FileSerializer(serializers.Serializer[Any]):
    """A stored file."""

    id = serializers.CharField()
    object = _one_of("file")
    bytes = serializers.IntegerField(min_value=0)
    created_at = serializers.IntegerField()
    expires_at = serializers.IntegerField(allow_null=True)
    filename = serializers.CharField()
    purpose = _one_of(*UPLOAD_PURPOSES, "batch_output", "state")
    status = _one_of("processed")
    status_details = serializers.CharField(allow_null=True)


class _PageSerializer(serializers.Serializer[Any]):
    object = _one_of("list")
    first_id = serializers.CharField(allow_null=True)
    last_id = serializers.CharField(allow_null=True)
    has_more = serializers.BooleanField()


class FileListSerializer(_PageSerializer):
    """A page of files."""

    data = FileSerializer(many=True)  # type: ignore[assignment]


class FileDeletedSerializer(serializers.Serializer[Any]):
    """The file was deleted."""

    id = serializers.CharField()
    object = _one_of("file")
    deleted = serializers.BooleanField()


class WebhookRequestSerializer(StrictSerializer):
    """The webhook that is called at the end of a batch."""

    url = StrictCharField(max_length=2048, help_text="Where the signed message is posted.")
    secret = StrictCharField(
        required=False,
        max_length=100,
        help_text="whsec_ and base64 of 24 to 64 bytes. Default: drawn, and shown once in the response.",
    )


class BatchRequestSerializer(StrictSerializer):
    """Body of POST /v1/batches."""

    input_file_id = StrictCharField(max_length=64, help_text="A file with the purpose batch.")
    endpoint = serializers.ChoiceField(choices=tuple(ENDPOINT_KINDS), help_text="Every line's url.")
    completion_window = StrictCharField(
        max_length=16, help_text="24h, or any number of minutes, hours or days from 1m to 14d, such as 90m."
    )
    metadata = JSONObjectField(required=False, help_text="At most 16 pairs of short strings.")
    output_expires_after = JSONObjectField(
        required=False, help_text="anchor: created_at, seconds: 3600 to 2592000; for the output and error files."
    )
    priority = StrictIntegerField(
        required=False, min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, help_text="Lower goes first; default 0."
    )
    webhook = WebhookRequestSerializer(required=False)


class BatchPriorityRequestSerializer(StrictSerializer):
    """Body of POST /v1/batches/{id}/priority."""

    priority = StrictIntegerField(min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, help_text="Lower goes first.")


class BatchErrorSerializer(serializers.Serializer[Any]):
    """An error in the input file."""

    code = serializers.CharField()
    message = serializers.CharField()
    line = serializers.IntegerField(allow_null=True)
    param = serializers.CharField(allow_null=True)


class BatchErrorsSerializer(serializers.Serializer[Any]):
    """The errors that failed the validation, at most 100."""

    object = _one_of("list")
    data = BatchErrorSerializer(many=True)  # type: ignore[assignment]


class RequestCountsSerializer(serializers.Serializer[Any]):
    """Numbers of lines."""

    total = serializers.IntegerField(min_value=0)
    completed = serializers.IntegerField(min_value=0)
    failed = serializers.IntegerField(min_value=0)


class BatchInputDetailsSerializer(serializers.Serializer[Any]):
    """Parts of the prompts."""

    cached_tokens = serializers.IntegerField(min_value=0, help_text="Whose state was in the prefix cache.")


class BatchOutputDetailsSerializer(serializers.Serializer[Any]):
    """Parts of the outputs."""

    reasoning_tokens = serializers.IntegerField(min_value=0, help_text="Tokens of thinking.")


class BatchUsageSerializer(serializers.Serializer[Any]):
    """Tokens of the finished lines."""

    input_tokens = serializers.IntegerField(min_value=0)
    input_tokens_details = BatchInputDetailsSerializer()
    output_tokens = serializers.IntegerField(min_value=0)
    output_tokens_details = BatchOutputDetailsSerializer()
    total_tokens = serializers.IntegerField(min_value=0)


class BatchProgressSerializer(serializers.Serializer[Any]):
    """The progress of a batch."""

    percent = serializers.FloatField(min_value=0, max_value=100)
    queue_position = serializers.IntegerField(
        allow_null=True,
        min_value=0,
        help_text="Batches that go before it; null while it is paused and once it has ended.",
    )
    lines_per_s = serializers.FloatField(min_value=0, help_text="Over the last minute.")
    tokens_per_s = serializers.FloatField(min_value=0, help_text="Generated tokens, over the last minute.")
    estimated_finish_at = serializers.IntegerField(allow_null=True, help_text="Null: nothing to judge by yet.")
    is_feasible = serializers.BooleanField(
        allow_null=True, help_text="Whether the estimate lies within the window; null: unknown."
    )
    is_paused = serializers.BooleanField(help_text="Whether it starts no line until it is resumed.")


class WebhookSerializer(serializers.Serializer[Any]):
    """The webhook of a batch, and its delivery."""

    url = serializers.CharField()
    secret = serializers.CharField(required=False, help_text="Only in the response to the creation, if it was drawn.")


class BatchSerializer(serializers.Serializer[Any]):
    """A batch."""

    id = serializers.CharField()
    object = _one_of("batch")
    endpoint = serializers.CharField()
    errors = BatchErrorsSerializer(allow_null=True)  # type: ignore[assignment]
    input_file_id = serializers.CharField()
    completion_window = serializers.CharField()
    status = _one_of(
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    )
    output_file_id = serializers.CharField(allow_null=True)
    error_file_id = serializers.CharField(allow_null=True)
    created_at = serializers.IntegerField()
    in_progress_at = serializers.IntegerField(allow_null=True)
    expires_at = serializers.IntegerField()
    finalizing_at = serializers.IntegerField(allow_null=True)
    completed_at = serializers.IntegerField(allow_null=True)
    failed_at = serializers.IntegerField(allow_null=True)
    expired_at = serializers.IntegerField(allow_null=True)
    cancelling_at = serializers.IntegerField(allow_null=True)
    cancelled_at = serializers.IntegerField(allow_null=True)
    request_counts = RequestCountsSerializer()
    metadata = serializers.DictField(allow_null=True)
    usage = BatchUsageSerializer()
    priority = serializers.IntegerField()
    schedule_id = serializers.CharField(allow_null=True)
    webhook = WebhookSerializer(allow_null=True)
    progress = BatchProgressSerializer()


class BatchListSerializer(_PageSerializer):
    """A page of batches, newest first."""

    data = BatchSerializer(many=True)  # type: ignore[assignment]


class BatchScheduleRequestSerializer(BatchRequestSerializer):
    """Body of POST /v1/batches/schedules: the members of a batch, and the times."""

    cron = StrictCharField(max_length=100, help_text=CRON_HELP)
    time_zone = StrictCharField(required=False, max_length=64, help_text=TIME_ZONE_HELP)


class BatchScheduleSerializer(serializers.Serializer[Any]):
    """A schedule."""

    id = serializers.CharField()
    object = _one_of("batch.schedule")
    cron = serializers.CharField()
    time_zone = serializers.CharField()
    input_file_id = serializers.CharField()
    endpoint = serializers.CharField()
    completion_window = serializers.CharField()
    metadata = serializers.DictField(allow_null=True)
    priority = serializers.IntegerField()
    webhook = WebhookSerializer(allow_null=True)
    enabled = serializers.BooleanField()
    created_at = serializers.IntegerField()
    next_run_at = serializers.IntegerField()
    last_run_at = serializers.IntegerField(allow_null=True)
    last_batch_id = serializers.CharField(allow_null=True)
    last_error = serializers.CharField(allow_null=True, help_text="Why the last run made no batch.")


class BatchScheduleListSerializer(_PageSerializer):
    """The schedules."""

    data = BatchScheduleSerializer(many=True)  # type: ignore[assignment]


class BatchScheduleDeletedSerializer(serializers.Serializer[Any]):
    """The schedule was deleted."""

    id = serializers.CharField()
    object = _one_of("batch.schedule")
    deleted = serializers.BooleanField()
