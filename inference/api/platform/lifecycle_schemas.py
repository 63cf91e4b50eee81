"""Response schemas of models in memory and running requests."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.api.schemas import ErrorBodySerializer
from models_registry.api.serializers import LiveModelSerializer, WorkerFitSerializer


class ModelStatusSerializer(LiveModelSerializer):
    """The state of a model on the workers."""

    id = serializers.CharField()
    object = serializers.RegexField(r"^model\.status$")
    status = serializers.CharField(help_text="unloaded, loading, ready or failed.")
    error = ErrorBodySerializer(allow_null=True, help_text="Why the last load failed.")
    pinned = serializers.BooleanField(help_text="It stays until it is asked to go.")
    keep_alive_s = serializers.FloatField(allow_null=True, help_text="-1: for ever; null: it isn't loaded.")
    load_s = serializers.FloatField(allow_null=True, help_text="Seconds that the last load took.")


class ModelFitSerializer(serializers.Serializer[Any]):
    """Whether a model would fit, per worker."""

    id = serializers.CharField()
    object = serializers.RegexField(r"^model\.fit$")
    fits = serializers.BooleanField(help_text="On some worker, other models evicted if need be.")
    workers = WorkerFitSerializer(many=True)


class RunningRequestSerializer(serializers.Serializer[Any]):
    """A request that a worker holds."""

    id = serializers.CharField()
    object = serializers.RegexField("^request$")
    model = serializers.CharField()
    owner = serializers.CharField(help_text="key:N, user:N or local.")
    state = serializers.CharField(help_text="waiting or running.")
    tokens = serializers.IntegerField(help_text="Generated so far.")
    prompts = serializers.IntegerField()
    received_at = serializers.FloatField(help_text="Unix time.")
    workers = serializers.ListField(child=serializers.CharField())


class RunningRequestListSerializer(serializers.Serializer[Any]):
    """Requests, oldest first."""

    object = serializers.RegexField("^list$")
    data = RunningRequestSerializer(many=True)  # type: ignore[assignment]


class RequestCancelledSerializer(serializers.Serializer[Any]):
    """The cancellation was sent to the workers."""

    id = serializers.CharField()
    object = serializers.RegexField("^request$")
    cancelled = serializers.BooleanField()
