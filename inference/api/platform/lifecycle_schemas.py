"""Shapes of what is said about models in memory and running requests."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.api.schemas import ErrorBodySerializer


class DepartureSerializer(serializers.Serializer[Any]):
    """When and why the model was unloaded."""

    worker_id = serializers.CharField()
    reason = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    resident_s = serializers.FloatField()
    at = serializers.FloatField(help_text="Unix time.")


class LiveModelSerializer(serializers.Serializer[Any]):
    """What the API and the pages both tell of a model, as the workers say."""

    progress = serializers.FloatField(help_text="Share of the load that is done.")
    stage = serializers.CharField(allow_blank=True)
    workers = serializers.ListField(child=serializers.CharField())
    memory_bytes = serializers.IntegerField()
    num_running = serializers.IntegerField()
    num_waiting = serializers.IntegerField()
    num_queued = serializers.IntegerField()
    tokens_per_s = serializers.FloatField()
    last_used_at = serializers.FloatField(help_text="Unix time; 0: not yet.")
    departures = DepartureSerializer(many=True, help_text="When it was unloaded, and why; the last few times.")


class ModelStatusSerializer(LiveModelSerializer):
    """What the workers say of a model."""

    id = serializers.CharField()
    object = serializers.RegexField(r"^model\.status$")
    status = serializers.CharField(help_text="unloaded, loading, ready or failed.")
    error = ErrorBodySerializer(allow_null=True, help_text="Why the last load failed.")
    pinned = serializers.BooleanField(help_text="It stays until it is asked to go.")
    keep_alive_s = serializers.FloatField(allow_null=True, help_text="-1: for ever; null: it isn't loaded.")
    load_s = serializers.FloatField(allow_null=True, help_text="Seconds that the last load took.")


class WorkerFitSerializer(serializers.Serializer[Any]):
    """Whether a model would fit on one worker."""

    worker_id = serializers.CharField()
    verdict = serializers.CharField(
        help_text="resident, fits, fits_after_eviction, pinned_models_in_the_way or too_large."
    )
    needed_bytes = serializers.IntegerField(help_text="Weights and states, a draft model's included.")
    budget_bytes = serializers.IntegerField()
    used_bytes = serializers.IntegerField(help_text="By other models.")
    pinned_bytes = serializers.IntegerField(help_text="By other models that are pinned.")
    weights_bytes = serializers.IntegerField()
    states_bytes = serializers.IntegerField()
    bytes_per_token = serializers.IntegerField(help_text="Of each sequence's state.")
    bytes_per_sequence = serializers.IntegerField(help_text="On top of that, whatever its length.")
    max_model_len = serializers.IntegerField()
    max_num_seqs = serializers.IntegerField()
    full_sequences = serializers.IntegerField(help_text="So many of full length have room at once.")


class ModelFitSerializer(serializers.Serializer[Any]):
    """Whether a model would fit, per worker."""

    id = serializers.CharField()
    object = serializers.RegexField(r"^model\.fit$")
    fits = serializers.BooleanField(help_text="On some worker, other models evicted if need be.")
    workers = WorkerFitSerializer(many=True)


class RunningRequestSerializer(serializers.Serializer[Any]):
    """A request that a worker has."""

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
    """The cancellation is on its way."""

    id = serializers.CharField()
    object = serializers.RegexField("^request$")
    cancelled = serializers.BooleanField()
