"""Define the rows of the registry: checkpoints, overrides, aliases, uploads, and jobs on checkpoints.

``selectors`` reads them; ``services``, ``uploads`` and ``checkpoint_jobs`` write them.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from models_registry.adapter_models import Adapter as Adapter
from models_registry.alias_models import MAX_NAME_CHARS as MAX_NAME_CHARS
from models_registry.alias_models import AliasRevision as AliasRevision
from models_registry.alias_models import ModelAlias as ModelAlias


class Checkpoint(models.Model):
    """Stored weights with their config, as inspection found them.

    ``inspection`` is ``Inspection.to_dict()``: the ``ModelSpec`` that the worker builds from, the
    ``TokenizerSpec``, facts with evidence, files and tensors. It can have several megabytes, so lists leave
    it out. The other columns repeat the values that lists and selectors need.
    """

    class Source(models.TextChoices):
        """Origin of the files, which also says who owns them."""

        PATH = "path", "path"
        UPLOAD = "upload", "upload"
        HUB = "hub", "hub"

    class State(models.TextChoices):
        """Whether the files can be served. Whether they are served now, only the workers know."""

        AVAILABLE = "available", "available"
        MISSING = "missing", "files are missing"
        REFUSED = "refused", "refused"

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"inspection": dict, "file_stamps": list, "settings": dict}
    JSON_MEMBERS: ClassVar[dict[str, tuple[str, ...]]] = {"inspection": ("tokenizer",)}

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    served_model_name = models.CharField(
        max_length=MAX_NAME_CHARS, unique=True, help_text="What the API calls model: a label, never a path."
    )
    source = models.CharField(max_length=8, choices=Source.choices, default=Source.PATH)
    origin = models.CharField(
        max_length=300, blank=True, default="", help_text="Hub id and revision, or the uploader's folder name."
    )
    path = models.TextField(unique=True, help_text="Registered directory or weight file, absolute.")
    directory = models.TextField(help_text="Directory that the inspection's file names are relative to.")
    format = models.CharField(max_length=16, help_text="oxidizr or huggingface.")
    model_type = models.CharField(max_length=64)
    architecture = models.CharField(max_length=300, help_text="Layer kinds and how many of each, for people.")
    dtype = models.CharField(max_length=16, help_text="dtype of the stored weights.")
    num_layers = models.PositiveIntegerField(default=0)
    num_parameters = models.BigIntegerField(default=0)
    size_bytes = models.BigIntegerField(default=0)
    vocab_size = models.PositiveIntegerField(default=0)
    max_position_embeddings = models.PositiveIntegerField(default=0)
    inspection = models.JSONField(default=dict)
    file_stamps = models.JSONField(
        default=list, help_text="Per file: name, size, modification time (ns), inode, SHA-256 if known."
    )
    settings = models.JSONField(default=dict, blank=True, help_text="Operator's choices; see settings_schema.")
    state = models.CharField(max_length=12, choices=State.choices, default=State.AVAILABLE)
    state_reason = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["served_model_name"]
        permissions: ClassVar[list[Any]] = [("load_checkpoint", "Can load and unload checkpoint")]

    def __str__(self) -> str:
        return self.served_model_name

    @property
    def owns_files(self) -> bool:
        """Whether its files go with it: an upload's, and copies of what a trainer wrote (``promoted_copies``)."""
        place, is_path = Path(settings.BLAZR_CHECKPOINTS_DIR), self.source == self.Source.PATH
        return self.source == self.Source.UPLOAD or (is_path and Path(self.directory).is_relative_to(place))


class CheckpointOverride(models.Model):
    """A fact that a person set in place of the detected one; kept with author and time, also when cleared."""

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="overrides")
    fact = models.CharField(max_length=64)
    value = models.JSONField()
    source = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="borrowers",
        help_text="The checkpoint that value names, as long as the override is in force.",
    )
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    author_name = models.CharField(max_length=150, blank=True, default="", help_text="Outlives the account.")
    created_at = models.DateTimeField(auto_now_add=True)
    cleared_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at", "-id"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(
                fields=["checkpoint", "fact"], condition=Q(cleared_at__isnull=True), name="one_override_per_fact"
            )
        ]

    def __str__(self) -> str:
        return f"{self.fact} = {self.value!r}"


class SignInAttempt(models.Model):
    """An attempt to sign in, until it succeeds or is too old to count; see ``sign_in``."""

    name = models.CharField(max_length=64, help_text="SHA-256 of the user name.")
    address = models.CharField(max_length=64)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["name"], name="sign_in_by_name"),
            models.Index(fields=["address"], name="sign_in_by_address"),
        ]

    def __str__(self) -> str:
        return f"{self.address} at {self.created_at}"


class Upload(models.Model):
    """An upload of a checkpoint's files from a browser.

    receiving → checking → done, or refused (with the reason), or cancelled. The last three never change. The
    resulting checkpoint has the upload's id.
    """

    class State(models.TextChoices):
        """Stages of an upload."""

        RECEIVING = "receiving", "receiving"
        CHECKING = "checking", "checking"
        DONE = "done", "done"
        REFUSED = "refused", "refused"
        CANCELLED = "cancelled", "cancelled"

    OPEN: ClassVar[tuple[str, ...]] = (State.RECEIVING, State.CHECKING)
    """States that still change."""
    JSON_COLUMNS: ClassVar[dict[str, type]] = {"overrides": dict}

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    served_model_name = models.CharField(max_length=MAX_NAME_CHARS)
    size_bytes = models.BigIntegerField(help_text="Declared total.")
    overrides = models.JSONField(default=dict, blank=True, help_text="Facts set by the uploader, by name.")
    state = models.CharField(max_length=12, choices=State.choices, default=State.RECEIVING)
    stage = models.CharField(max_length=100, blank=True, default="", help_text="What the check is at.")
    num_checks = models.PositiveSmallIntegerField(default=0, help_text="How often the check has begun.")
    reason = models.TextField(blank=True, default="", help_text="Why it was refused.")
    checkpoint = models.ForeignKey(Checkpoint, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    active_at = models.DateTimeField(help_text="Last sign of life; the sweep ends silent uploads.")

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]
        indexes: ClassVar[list[Any]] = [models.Index(fields=["state", "active_at"], name="upload_sweep")]

    def __str__(self) -> str:
        return f"{self.served_model_name} ({self.state})"


class UploadFile(models.Model):
    """One declared file of an upload; the next piece must start at ``received_bytes``."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="files")
    number = models.PositiveIntegerField(help_text="Position in the declaration; names its temporary file.")
    name = models.CharField(max_length=200)
    size_bytes = models.BigIntegerField()
    received_bytes = models.BigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, default="", help_text="Declared, then the measured one.")

    class Meta:
        ordering: ClassVar[list[str]] = ["number"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["upload", "number"], name="upload_file_number"),
            models.UniqueConstraint(fields=["upload", "name"], name="upload_file_name"),
        ]

    def __str__(self) -> str:
        return self.name


class PullJob(models.Model):
    """A download of a checkpoint from the hub or the package index; one of a dead process goes on in the next one.

    running → done, or failed (with the reason), or cancelled. The last three never change.
    """

    class State(models.TextChoices):
        """Stages of a pull."""

        RUNNING = "running", "running"
        DONE = "done", "done"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    class Stage(models.TextChoices):
        """What a running pull is at."""

        FETCHING = "fetching", "fetching"
        CHECKING = "checking", "checking the digest"
        INSPECTING = "inspecting", "inspecting"
        REGISTERING = "registering", "registering"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    origin = models.CharField(max_length=200, help_text="ORG/NAME, or pypi:NAME.")
    served_model_name = models.CharField(max_length=MAX_NAME_CHARS, blank=True, default="", help_text="Empty: NAME.")
    state = models.CharField(max_length=12, choices=State.choices, default=State.RUNNING)
    stage = models.CharField(max_length=12, choices=Stage.choices, default=Stage.FETCHING)
    file = models.CharField(max_length=200, blank=True, default="", help_text="What is being downloaded.")
    done_bytes = models.BigIntegerField(default=0, help_text="Of that file.")
    total_bytes = models.BigIntegerField(default=0, help_text="Of that file.")
    fetched_bytes = models.BigIntegerField(default=0, help_text="Of all files; what the cache had included.")
    size_bytes = models.BigIntegerField(default=0, help_text="Of all files; 0: not known yet.")
    bytes_per_s = models.BigIntegerField(default=0, help_text="Over the network, lately; 0: nothing comes.")
    reason = models.TextField(blank=True, default="", help_text="Why it failed.")
    checkpoint = models.ForeignKey(Checkpoint, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    active_at = models.DateTimeField(help_text="Last sign of life.")

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.origin} ({self.state})"


class CheckpointJob(models.Model):
    """A job on a checkpoint that an operator started on the checkpoint's page.

    running → done, or failed (with the reason), or cancelled. The last three never change. One job of a kind runs at a
    time.
    """

    class State(models.TextChoices):
        """Stages of a job."""

        RUNNING = "running", "running"
        DONE = "done", "done"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    source = models.ForeignKey(
        Checkpoint, null=True, on_delete=models.SET_NULL, related_name="%(class)ss", help_text="What the job is on."
    )
    source_name = models.CharField(max_length=MAX_NAME_CHARS, help_text="Outlives the source.")
    state = models.CharField(max_length=12, choices=State.choices, default=State.RUNNING)
    progress = models.FloatField(default=0.0, help_text="Share of the work that is done.")
    stage = models.CharField(max_length=200, blank=True, default="", help_text="What is being done.")
    reason = models.TextField(blank=True, default="", help_text="Why it failed, or who cancelled it.")
    created_at = models.DateTimeField(auto_now_add=True)
    active_at = models.DateTimeField(help_text="Last sign of life.")

    class Meta:
        abstract = True
        ordering: ClassVar[list[str]] = ["-created_at"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["state"], condition=Q(state="running"), name="one_running_%(class)s")
        ]


class Quantisation(CheckpointJob):
    """A quantisation of a checkpoint; the resulting checkpoint has the quantisation's id."""

    served_model_name = models.CharField(max_length=MAX_NAME_CHARS, help_text="Of the result.")
    max_bytes = models.BigIntegerField(null=True, blank=True, help_text="Limit of the weights' file.")
    max_kl = models.FloatField(null=True, blank=True, help_text="Limit of the mean KL divergence, in nats.")
    text = models.TextField(blank=True, default="", help_text="What it measures on; empty: the default text.")
    checkpoint = models.ForeignKey(
        Checkpoint, null=True, blank=True, on_delete=models.SET_NULL, related_name="+", help_text="The result."
    )

    def __str__(self) -> str:
        return f"{self.source_name} to {self.served_model_name} ({self.state})"


class SpanMeasurement(CheckpointJob):
    """How far back each layer of a checkpoint reaches over a text; the result is in the row."""

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"table": list}

    text = models.TextField(blank=True, default="", help_text="What is read; empty: random tokens.")
    max_tokens = models.PositiveIntegerField(help_text="Tokens of the text that are read.")
    max_seconds = models.PositiveIntegerField(help_text="Time of the process that reads it.")
    num_tokens = models.PositiveIntegerField(default=0, help_text="Tokens that were read.")
    figures = models.TextField(blank=True, default="", help_text="All figures, as JSON.")
    table = models.JSONField(default=list, help_text="A row of words for each mixer.")
    picture = models.TextField(blank=True, default="", help_text="An SVG document.")

    class Meta(CheckpointJob.Meta):
        pass

    def __str__(self) -> str:
        return f"memory of {self.source_name} ({self.state})"


class TrainingRun(models.Model):
    """A directory in which a trainer writes checkpoints; each that is complete becomes a revision of one alias.

    ``runs`` writes the rows. watching ↔ missing, as long as nobody stops it; stopped → watching.
    """

    class State(models.TextChoices):
        """Whether the directory is looked at."""

        WATCHING = "watching", "watching"
        MISSING = "missing", "directory is missing"
        STOPPED = "stopped", "stopped"

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"prompts": list}

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=MAX_NAME_CHARS, unique=True, help_text="The alias of its checkpoints.")
    directory = models.TextField(unique=True, help_text="Absolute, without links.")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    state = models.CharField(max_length=12, choices=State.choices, default=State.WATCHING)
    reason = models.TextField(blank=True, default="", help_text="Why it isn't looked at.")
    prompts = models.JSONField(default=list, help_text="Texts that every checkpoint continues.")
    max_tokens = models.PositiveIntegerField(help_text="Of a sample.")
    temperature = models.FloatField(help_text="Of the samples.")
    seed = models.BigIntegerField(help_text="Of the samples, the same for every checkpoint.")
    text = models.TextField(help_text="Held-out text, of which the loss is measured.")
    loss_tokens = models.PositiveIntegerField(help_text="Tokens of the text that are read.")
    max_seconds = models.PositiveIntegerField(help_text="Time of the process that measures a checkpoint.")
    looked_at = models.DateTimeField(null=True, blank=True, help_text="Last look at the directory.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.state})"


class RunStep(models.Model):
    """A checkpoint of a run: incomplete → registered, or refused (with the reason); again if its files change."""

    class State(models.TextChoices):
        """What has become of it."""

        INCOMPLETE = "incomplete", "not complete yet"
        REGISTERED = "registered", "registered"
        REFUSED = "refused", "refused"

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"samples": list}

    run = models.ForeignKey(TrainingRun, on_delete=models.CASCADE, related_name="steps")
    name = models.CharField(max_length=255, help_text="Of the file or directory.")
    number = models.BigIntegerField(null=True, help_text="Training steps; null: the end.")
    state = models.CharField(max_length=12, choices=State.choices, default=State.INCOMPLETE)
    reason = models.TextField(blank=True, default="", help_text="Why it isn't complete, or was refused.")
    everything = models.CharField(max_length=64, help_text="Digest of all files at the last look.")
    seen_at = models.DateTimeField(help_text="When that digest was seen first.")
    read = models.CharField(
        max_length=64, blank=True, default="", help_text="Digest of the files that were registered or refused."
    )
    checkpoint = models.ForeignKey(Checkpoint, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    revision = models.PositiveIntegerField(null=True, blank=True, help_text="Of the run's alias.")
    loss = models.FloatField(null=True, blank=True, help_text="Mean over the held-out text, in nats per token.")
    num_tokens = models.PositiveIntegerField(default=0, help_text="Predictions that the loss is a mean of.")
    samples = models.JSONField(default=list, help_text="For each prompt what the checkpoint made of it.")
    measured_at = models.DateTimeField(null=True, blank=True)
    num_failures = models.PositiveSmallIntegerField(default=0, help_text="Of measurements.")
    problem = models.TextField(blank=True, default="", help_text="Why the last measurement failed.")

    class Meta:
        ordering: ClassVar[list[Any]] = [models.F("number").asc(nulls_last=True), "name"]
        constraints: ClassVar[list[Any]] = [models.UniqueConstraint(fields=["run", "name"], name="run_step_name")]

    def __str__(self) -> str:
        return f"{self.name} ({self.state})"

    @property
    def label(self) -> str:
        """What people call it."""
        return "final" if self.number is None else f"step {self.number}"

    @property
    def shown_samples(self) -> list[dict[str, Any]]:
        """The samples that have all members, as a damaged row's may not."""
        members = {"prompt", "text", "num_tokens", "finish_reason", "error"}
        return [sample for sample in self.samples if isinstance(sample, dict) and members <= sample.keys()]


class StepMeasurement(CheckpointJob):
    """The measurement of a run's checkpoint; the result is in the step's row."""

    step = models.ForeignKey(RunStep, on_delete=models.CASCADE, related_name="measurements")

    class Meta(CheckpointJob.Meta):
        pass

    def __str__(self) -> str:
        return f"measurement of {self.source_name} ({self.state})"


class Passport(CheckpointJob):
    """Checks of a checkpoint and its measured figures, as they were for its files and facts at one time."""

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"entries": list}

    identity = models.CharField(max_length=64, help_text="Digest of the files and facts that were checked.")
    is_automatic = models.BooleanField(default=False, help_text="Whether the server started it by itself.")
    entries = models.JSONField(default=list, help_text="For each check its name, state, words and figures.")

    class Meta(CheckpointJob.Meta):
        pass

    def __str__(self) -> str:
        return f"passport of {self.source_name} ({self.state})"

    @property
    def shown_entries(self) -> list[dict[str, Any]]:
        """The entries that have all members, as a damaged row's may not."""
        members = {"name", "state", "words", "figures"}
        return [entry for entry in self.entries if isinstance(entry, dict) and members <= entry.keys()]


class ServerChoices(models.Model):
    """What operators choose for all models; the one row has the number 1, and without it the defaults hold."""

    makes_passports = models.BooleanField(default=True, help_text="Whether the server makes passports by itself.")
    author_name = models.CharField(max_length=150, blank=True, default="")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "server choices"

    def __str__(self) -> str:
        return f"passports {'by the server' if self.makes_passports else 'by hand only'}"
