"""Serialize the JSON of the registry's API; these classes check types, the services check rules."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.values.memory_span import MAX_TOKENS
from inference.values.tokenizer_spec import MAX_TEMPLATE_CHARS
from models_registry.models import (
    MAX_NAME_CHARS,
    Checkpoint,
    CheckpointOverride,
    Quantisation,
    SpanMeasurement,
    Upload,
    UploadFile,
)
from models_registry.span_measurements import (
    DEFAULT_SECONDS,
    DEFAULT_TOKENS,
    MAX_SECONDS,
    MAX_TEXT_BYTES,
    MIN_TOKENS,
)
from models_registry.upload_rules import CHUNK_BYTES, MAX_FILES
from models_registry.upload_rules import MAX_NAME_CHARS as MAX_FILE_NAME_CHARS

MAX_BIGINT = (1 << 63) - 1
MAX_SHOWN_CHARS = 200
"""Characters of an override's value in the history."""


class DeclaredFileSerializer(serializers.Serializer[Any]):
    """A file of an upload, before it is sent."""

    # Longer than the limit of the rules, so that the rules' error is reported.
    name = serializers.CharField(max_length=20 * MAX_FILE_NAME_CHARS, trim_whitespace=False)
    size_bytes = serializers.IntegerField(min_value=0, max_value=MAX_BIGINT)
    sha256 = serializers.CharField(required=False, allow_blank=True, default="", max_length=64)


class UploadCreateSerializer(serializers.Serializer[Any]):
    """Declaration of an upload; a missing name is derived from ``label`` (the folder's name)."""

    served_model_name = serializers.CharField(required=False, allow_blank=True, default="", max_length=200)
    label = serializers.CharField(  # type: ignore[assignment]
        required=False, allow_blank=True, default="", max_length=1000
    )
    files = serializers.ListField(child=DeclaredFileSerializer(), min_length=1, max_length=MAX_FILES)
    overrides = serializers.DictField(
        child=serializers.JSONField(allow_null=True),
        required=False,
        help_text="Facts that count instead of detected ones.",
    )


class UploadFinishSerializer(serializers.Serializer[Any]):
    """Another name for an upload's model."""

    served_model_name = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=200, help_text="Empty: the declared one."
    )


class UploadPreviewSerializer(serializers.Serializer[Any]):
    """What an upload's model is, as far as its heads say."""

    is_conclusive = serializers.BooleanField(help_text="false: send more of the weights, and ask again or finish.")
    model_type = serializers.CharField(required=False)
    format = serializers.CharField(required=False)
    dtype = serializers.CharField(required=False)
    num_layers = serializers.IntegerField(required=False)
    num_parameters = serializers.IntegerField(required=False)
    max_position_embeddings = serializers.IntegerField(required=False)
    vocab_size = serializers.IntegerField(required=False)
    layers = serializers.ListField(child=serializers.DictField(), required=False)
    tokenizer = serializers.CharField(required=False)
    warnings = serializers.ListField(child=serializers.CharField(), required=False)


class UploadFileSerializer(serializers.ModelSerializer[UploadFile]):
    """Progress of one file."""

    class Meta:
        model = UploadFile
        fields = ("number", "name", "size_bytes", "received_bytes", "sha256")


class UploadSerializer(serializers.ModelSerializer[Upload]):
    """State of an upload; each file continues at ``received_bytes``."""

    # A plain string in the schema: its generator can't name three enums that are all called "state".
    state = serializers.CharField(read_only=True, help_text=f"{', '.join(Upload.State.values)}.")
    files = UploadFileSerializer(many=True, read_only=True)
    chunk_bytes = serializers.SerializerMethodField()

    class Meta:
        model = Upload
        fields = (
            "id", "served_model_name", "state", "stage", "reason", "size_bytes", "checkpoint", "chunk_bytes", "files",
        )  # fmt: skip

    def get_chunk_bytes(self, row: Upload) -> int:
        """Return the largest piece per PUT, in bytes."""
        return CHUNK_BYTES


class QuantisationCreateSerializer(serializers.Serializer[Any]):
    """Limits of a quantisation, at least one of them, and the name of the result."""

    served_model_name = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=200, help_text="Empty: the source's with a suffix."
    )
    max_bytes = serializers.IntegerField(
        required=False, allow_null=True, default=None, help_text="Most bytes of the weights' file."
    )
    max_kl = serializers.FloatField(
        required=False, allow_null=True, default=None, help_text="Highest mean KL divergence by quantising, in nats."
    )
    text = serializers.CharField(
        required=False,
        trim_whitespace=False,
        help_text=f"What to measure on, at most {MAX_TEXT_BYTES} bytes in UTF-8. Missing: Python's help pages.",
    )


class QuantisationSerializer(serializers.ModelSerializer[Quantisation]):
    """State of a quantisation; ``checkpoint`` is the result."""

    state = serializers.CharField(read_only=True, help_text=f"{', '.join(Quantisation.State.values)}.")

    class Meta:
        model = Quantisation
        fields = (
            "id", "source", "source_name", "served_model_name", "max_bytes", "max_kl", "state", "progress", "stage",
            "reason", "checkpoint", "created_at", "active_at",
        )  # fmt: skip


class SpanMeasurementCreateSerializer(serializers.Serializer[Any]):
    """What is read, and the limits of the process that reads it."""

    text = serializers.CharField(
        required=False,
        trim_whitespace=False,
        help_text=f"At most {MAX_TEXT_BYTES} bytes in UTF-8. Missing: the default text.",
    )
    max_tokens = serializers.IntegerField(
        required=False, default=DEFAULT_TOKENS, help_text=f"Tokens that are read, {MIN_TOKENS} to {MAX_TOKENS}."
    )
    max_seconds = serializers.IntegerField(
        required=False, default=DEFAULT_SECONDS, help_text=f"The process is ended after so long, 1 to {MAX_SECONDS}."
    )


class SpanMeasurementSerializer(serializers.ModelSerializer[SpanMeasurement]):
    """State of a measurement; ``table`` has a row of words for each mixer when it is done."""

    state = serializers.CharField(read_only=True, help_text=f"{', '.join(SpanMeasurement.State.values)}.")
    table = serializers.ListField(child=serializers.DictField(child=serializers.CharField()), read_only=True)

    class Meta:
        model = SpanMeasurement
        fields = (
            "id", "source", "source_name", "max_tokens", "max_seconds", "num_tokens", "state", "progress", "stage",
            "reason", "table", "created_at", "active_at",
        )  # fmt: skip


class DepartureSerializer(serializers.Serializer[Any]):
    """When and why the model was unloaded."""

    worker_id = serializers.CharField()
    reason = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    resident_s = serializers.FloatField()
    at = serializers.FloatField(help_text="Unix time.")


class LiveModelSerializer(serializers.Serializer[Any]):
    """State of a model on the workers, for the API and the pages."""

    progress = serializers.FloatField(help_text="Share of the load that is done.")
    stage = serializers.CharField(allow_blank=True)
    workers = serializers.ListField(child=serializers.CharField())
    memory_bytes = serializers.IntegerField(help_text="Weights, and what is reserved for states and adapters.")
    states_bytes = serializers.IntegerField(help_text="Of these, reserved for states of requests.")
    adapter_bytes = serializers.IntegerField(help_text="Of these, reserved for LoRA adapters.")
    num_running = serializers.IntegerField()
    num_waiting = serializers.IntegerField()
    num_queued = serializers.IntegerField()
    tokens_per_s = serializers.FloatField()
    last_used_at = serializers.FloatField(help_text="Unix time; 0: not yet.")
    departures = DepartureSerializer(many=True, help_text="When it was unloaded, and why; the last few times.")


class EvictedModelSerializer(serializers.Serializer[Any]):
    """A model that a load would unload."""

    name = serializers.CharField()
    memory_bytes = serializers.IntegerField()


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
    resident_bytes = serializers.IntegerField(help_text="Held by the model itself; 0: it isn't here.")
    missing_bytes = serializers.IntegerField(help_text="Of the budget without pinned models; 0: it fits.")
    evicts = EvictedModelSerializer(many=True, help_text="Models that a load would unload now, in order.")
    weights_bytes = serializers.IntegerField()
    states_bytes = serializers.IntegerField()
    cache_bytes = serializers.IntegerField(help_text="Of the states, paged blocks.")
    slots_bytes = serializers.IntegerField(help_text="Of the states, those of each sequence.")
    snapshots_bytes = serializers.IntegerField(help_text="Of the states, copies for later prompts.")
    full_states_bytes = serializers.IntegerField(help_text="What states of all sequences at full length would take.")
    adapter_bytes = serializers.IntegerField()
    draft_bytes = serializers.IntegerField(help_text="A draft model's weights and states.")
    bytes_per_token = serializers.IntegerField(help_text="Of each sequence's state.")
    bytes_per_sequence = serializers.IntegerField(help_text="On top of that, whatever its length.")
    max_model_len = serializers.IntegerField()
    max_num_seqs = serializers.IntegerField()
    full_sequences = serializers.IntegerField(help_text="So many of full length have room at once.")


class LiveStateSerializer(LiveModelSerializer):
    """State of a model on the workers, with a notice for the pages."""

    status = serializers.ChoiceField(choices=("unloaded", "loading", "ready", "failed", "unknown"))
    error = serializers.CharField(allow_blank=True, help_text="Why the last load failed.")


class CheckpointSerializer(serializers.ModelSerializer[Checkpoint]):
    """A checkpoint in a list."""

    state = serializers.CharField(read_only=True, help_text=f"Of the files: {', '.join(Checkpoint.State.values)}.")
    live = LiveStateSerializer(read_only=True)

    class Meta:
        model = Checkpoint
        fields = (
            "id", "served_model_name", "source", "origin", "path", "format", "model_type", "architecture", "dtype",
            "num_layers", "num_parameters", "size_bytes", "vocab_size", "max_position_embeddings", "settings", "state",
            "state_reason", "created_at", "updated_at", "live",
        )  # fmt: skip


class CheckpointRenameSerializer(serializers.Serializer[Any]):
    """A new name."""

    served_model_name = serializers.CharField(max_length=MAX_NAME_CHARS)


class OverrideSerializer(serializers.ModelSerializer[CheckpointOverride]):
    """A fact that a person set; a long text is shortened."""

    class Meta:
        model = CheckpointOverride
        fields = ("fact", "value", "author_name", "created_at", "cleared_at")

    def to_representation(self, instance: CheckpointOverride) -> dict[str, Any]:
        """Return the fields, with the beginning of a long text."""
        shown: dict[str, Any] = super().to_representation(instance)
        value = shown["value"]
        if isinstance(value, str) and len(value) > MAX_SHOWN_CHARS:
            shown["value"] = f"{value[:MAX_SHOWN_CHARS]}… ({len(value)} characters)"
        return shown


class OverrideSetSerializer(serializers.Serializer[Any]):
    """A fact to set."""

    fact = serializers.CharField(max_length=64)
    value = serializers.JSONField(allow_null=True)


class TemplateSerializer(serializers.Serializer[Any]):
    """A chat template to check."""

    template = serializers.CharField(max_length=MAX_TEMPLATE_CHARS, trim_whitespace=False, help_text="Jinja source.")


class TemplateProblemSerializer(serializers.Serializer[Any]):
    """A problem of a chat template."""

    level = serializers.CharField(help_text="error: it can't be used; warning: it may not do what was meant.")
    message = serializers.CharField()
    line = serializers.IntegerField(help_text="0: of no single line.")


class TemplateCheckSerializer(serializers.Serializer[Any]):
    """Problems of a chat template, and a sample conversation as the template writes it."""

    problems = TemplateProblemSerializer(many=True)
    preview = serializers.CharField(allow_null=True, help_text="null: the template renders nothing.")


class SettingsSerializer(serializers.Serializer[Any]):
    """Model settings to change; null restores the default."""

    settings = serializers.DictField(child=serializers.JSONField(allow_null=True))


class CheckpointDetailSerializer(CheckpointSerializer):
    """A checkpoint with its inspection (``description``) and its overrides."""

    description = serializers.DictField(read_only=True)
    overrides = OverrideSerializer(many=True, read_only=True)

    class Meta(CheckpointSerializer.Meta):
        fields = (*CheckpointSerializer.Meta.fields, "description", "overrides")  # type: ignore[assignment]


class FitSerializer(serializers.Serializer[Any]):
    """Whether a checkpoint would fit, per worker: GET /v1/models/{name}/fit has the same numbers."""

    fits = serializers.BooleanField(help_text="On some worker, other models evicted if need be.")
    workers = WorkerFitSerializer(many=True)


class TensorSerializer(serializers.Serializer[Any]):
    """One tensor."""

    name = serializers.CharField()
    dtype = serializers.CharField()
    shape = serializers.ListField(child=serializers.IntegerField())
    size_bytes = serializers.IntegerField()
    file = serializers.CharField(allow_blank=True)


class TensorPageSerializer(serializers.Serializer[Any]):
    """Some of the tensors that match a search."""

    count = serializers.IntegerField(help_text="How many match.")
    offset = serializers.IntegerField()
    tensors = TensorSerializer(many=True)


class DevicePowerSerializer(serializers.Serializer[Any]):
    """The power of a device that has an energy counter, with everything that runs on it."""

    device = serializers.CharField()
    counter = serializers.CharField(help_text="rapl (a processor) or nvml (an NVIDIA device).")
    watts = serializers.FloatField(help_text="Mean over the last seconds.")
    hour_watts = serializers.FloatField(help_text="Mean over the last hour, or since the worker's start.")


class WorkerSerializer(serializers.Serializer[Any]):
    """A worker's last heartbeat."""

    worker_id = serializers.CharField()
    started_at = serializers.FloatField(help_text="Unix time.")
    device = serializers.CharField(allow_blank=True)
    heartbeat_age_s = serializers.FloatField()
    step_age_s = serializers.FloatField()
    is_late = serializers.BooleanField(help_text="A step takes longer than steps of this worker's engine may take.")
    memory_used_bytes = serializers.IntegerField()
    memory_budget_bytes = serializers.IntegerField()
    states_bytes = serializers.IntegerField(help_text="Of the used memory, what is reserved for states of requests.")
    adapter_bytes = serializers.IntegerField(help_text="Of the used memory, what is reserved for LoRA adapters.")
    states_used_bytes = serializers.IntegerField(help_text="Of the reserved states, those of running requests.")
    states_cached_bytes = serializers.IntegerField(help_text="Of the reserved states, those kept for later prompts.")
    num_active = serializers.IntegerField()
    max_active = serializers.IntegerField()
    draining = serializers.BooleanField()
    energy = DevicePowerSerializer(many=True)
    energy_notice = serializers.CharField(allow_blank=True, help_text="Why there is no energy counter.")
    models = serializers.ListField(child=serializers.CharField(), help_text="Served names.")


class OverviewSerializer(serializers.Serializer[Any]):
    """All values of the dashboard; ``notice`` names missing ones (the workers' state without Redis)."""

    checkpoints = CheckpointSerializer(many=True)
    workers = WorkerSerializer(many=True)
    jobs = serializers.DictField(child=serializers.IntegerField(), help_text="Number of queued jobs by state.")
    notice = serializers.CharField(allow_blank=True)
