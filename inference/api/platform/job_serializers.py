"""Body of POST /api/jobs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.dialects.fields import JSONObjectField, StrictCharField
from inference.dialects.strict_serializer import StrictSerializer


class JobItemSerializer(StrictSerializer):
    """One queued generation."""

    endpoint = serializers.ChoiceField(choices=("completion", "chat"))
    body = JSONObjectField(help_text="As for POST /v1/completions or /v1/chat/completions; one prompt, no stream.")
    idempotency_key = StrictCharField(
        required=False, max_length=200, allow_null=True, help_text="The same key and body give the same job."
    )


@extend_schema_field(JobItemSerializer(many=True))
class JobItemsField(serializers.Field[Any, Any, Any, Any]):
    """A list of jobs; each is looked at on its own, so that an error says which one."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("must be a list with at least one job.")
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class JobSubmissionSerializer(StrictSerializer):
    """Body of POST /api/jobs: one job in its own members, or several under jobs."""

    endpoint = serializers.ChoiceField(choices=("completion", "chat"), required=False)
    body = JSONObjectField(required=False)
    idempotency_key = StrictCharField(required=False, max_length=200)
    jobs = JobItemsField(required=False)
    batch_label = StrictCharField(required=False, max_length=100, allow_blank=True)
