"""Validate bodies of POST /api/jobs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from inference.dialects.fields import JSONObjectField, RequestField, StrictCharField, optional
from inference.dialects.strict_serializer import StrictSerializer


class JobItemSerializer(StrictSerializer):
    """One queued generation."""

    endpoint = serializers.ChoiceField(choices=("completion", "chat"), help_text="completion or chat.")
    body = JSONObjectField(help_text="The body of that endpoint: one prompt, no stream; at most 4 MiB.")
    idempotency_key = optional(StrictCharField, "The same key and body give the same job.", max_length=200)


@extend_schema_field(JobItemSerializer(many=True))
class JobItemsField(RequestField):
    """A list of jobs; each is validated on its own, so that an error names the job."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("must be a list with at least one job.")
        return data


class JobSubmissionSerializer(StrictSerializer):
    """Body of POST /api/jobs: the members of one job, or several jobs under jobs."""

    endpoint = serializers.ChoiceField(choices=("completion", "chat"), required=False, help_text="completion or chat.")
    body = JSONObjectField(required=False, help_text="The body of that endpoint: one prompt, no stream; at most 4 MiB.")
    idempotency_key = StrictCharField(
        required=False, max_length=200, help_text="The same key and body give the same job."
    )
    jobs = JobItemsField(required=False, help_text="Up to 50,000 jobs in place of one, within a body's limits.")
    batch_label = StrictCharField(
        required=False,
        max_length=100,
        allow_blank=True,
        help_text="Common to all jobs of the submission, for finding them.",
    )
