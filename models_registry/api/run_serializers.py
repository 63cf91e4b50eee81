"""Serialize training runs and promotions for the registry's API; the services check rules."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from models_registry.models import MAX_NAME_CHARS, AliasRevision, RunStep, TrainingRun
from models_registry.runs.services import DEFAULTS, MAX_PROMPTS


class RunOptionsSerializer(serializers.Serializer[Any]):
    """How the checkpoints of a run are measured; what is missing stays as it is, or has its default."""

    prompts = serializers.ListField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True),
        required=False,
        help_text=f"Texts that every checkpoint continues, 1 to {MAX_PROMPTS}.",
    )
    max_tokens = serializers.IntegerField(required=False, help_text=f"Of a sample; {DEFAULTS['max_tokens']}.")
    temperature = serializers.FloatField(required=False, help_text=f"Of the samples; {DEFAULTS['temperature']}.")
    seed = serializers.IntegerField(required=False, help_text="Of the samples, the same for every checkpoint; 0.")
    text = serializers.CharField(
        required=False, trim_whitespace=False, allow_blank=True, help_text="Held-out text. Missing: a default text."
    )
    loss_tokens = serializers.IntegerField(required=False, help_text=f"Read of it; {DEFAULTS['loss_tokens']}.")
    max_seconds = serializers.IntegerField(
        required=False, help_text=f"Time of the process that measures a checkpoint; {DEFAULTS['max_seconds']}."
    )


class RunCreateSerializer(RunOptionsSerializer):
    """A directory to watch."""

    directory = serializers.CharField(help_text="Absolute, in a directory that the server's settings name.")
    name = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=200, help_text="Alias of the checkpoints."
    )


class RunDeleteSerializer(serializers.Serializer[Any]):
    """What goes with a run that is forgotten."""

    with_models = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Also its alias, and those of its checkpoints that nothing else uses.",
    )


class SampleSerializer(serializers.Serializer[Any]):
    """What a checkpoint made of a prompt."""

    prompt = serializers.CharField()
    text = serializers.CharField(allow_blank=True)
    num_tokens = serializers.IntegerField()
    finish_reason = serializers.CharField(allow_blank=True)
    error = serializers.CharField(allow_blank=True)


class RunStepSerializer(serializers.ModelSerializer[RunStep]):
    """A checkpoint of a run."""

    state = serializers.CharField(read_only=True, help_text=f"{', '.join(RunStep.State.values)}.")
    label = serializers.CharField(read_only=True)  # type: ignore[assignment]
    samples = SampleSerializer(source="shown_samples", many=True, read_only=True)

    class Meta:
        model = RunStep
        fields = (
            "name", "number", "label", "state", "reason", "checkpoint", "revision", "loss", "num_tokens", "samples",
            "problem", "measured_at",
        )  # fmt: skip


class RunSerializer(serializers.ModelSerializer[TrainingRun]):
    """A run in a list."""

    state = serializers.CharField(read_only=True, help_text=f"{', '.join(TrainingRun.State.values)}.")

    class Meta:
        model = TrainingRun
        fields = (
            "id", "name", "directory", "state", "reason", "prompts", "max_tokens", "temperature", "seed", "text",
            "loss_tokens", "max_seconds", "looked_at", "created_at",
        )  # fmt: skip


class RunDetailSerializer(RunSerializer):
    """A run with its checkpoints, and the one that is being measured."""

    steps = RunStepSerializer(many=True, read_only=True)
    measuring = serializers.CharField(read_only=True, allow_blank=True, help_text="Name of a step; empty: none.")
    progress = serializers.FloatField(read_only=True, help_text="Of its measurement.")

    class Meta(RunSerializer.Meta):
        fields = (*RunSerializer.Meta.fields, "steps", "measuring", "progress")  # type: ignore[assignment]


class RunStateSerializer(serializers.Serializer[Any]):
    """Whether a run has changed."""

    version = serializers.CharField(help_text="Another one when the run or one of its checkpoints has changed.")
    measuring = serializers.CharField(allow_blank=True, help_text="Name of a step; empty: none.")
    progress = serializers.FloatField(help_text="Of its measurement.")


class PromoteSerializer(serializers.Serializer[Any]):
    """The alias that a checkpoint, or an adapter of it, becomes the meaning of."""

    alias = serializers.CharField(max_length=MAX_NAME_CHARS)
    adapter = serializers.UUIDField(required=False, help_text="Id of an adapter; default: the checkpoint alone.")


class PromotedSerializer(serializers.ModelSerializer[AliasRevision]):
    """The new revision of an alias."""

    alias = serializers.CharField(source="alias.name")

    class Meta:
        model = AliasRevision
        fields = ("alias", "number", "checkpoint", "checkpoint_name", "adapter_name", "author_name", "created_at")
