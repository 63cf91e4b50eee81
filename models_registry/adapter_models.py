"""Define the rows of LoRA adapters; ``models`` has them with the others."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from models_registry.alias_models import MAX_NAME_CHARS


class Adapter(models.Model):
    """A LoRA adapter of a checkpoint, which requests name as ``BASE:NAME``; its files stay where they are."""

    class State(models.TextChoices):
        """Whether the files are there."""

        AVAILABLE = "available", "available"
        MISSING = "missing", "files are missing"

    class Kind(models.TextChoices):
        """How its changes are made."""

        LORA = "lora", "LoRA"
        XLORA = "xlora", "X-LoRA"

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"targets": list}

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    base = models.ForeignKey("Checkpoint", on_delete=models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=MAX_NAME_CHARS)
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.LORA)
    path = models.TextField(help_text="PEFT's directory or its safetensors file, absolute.")
    digest = models.CharField(max_length=64, help_text="SHA-256 of the files' content.")
    rank = models.PositiveIntegerField(help_text="The greatest of its matrices.")
    targets = models.JSONField(default=list, help_text="Last parts of the changed modules' names.")
    num_values = models.BigIntegerField(help_text="Numbers that it keeps in memory.")
    size_bytes = models.BigIntegerField(help_text="Of its tensors in the file.")
    state = models.CharField(max_length=12, choices=State.choices, default=State.AVAILABLE)
    is_pinned = models.BooleanField(
        default=False, help_text="It was loaded ahead of its requests; until it is unloaded, its base's loads load it."
    )
    loaded_at = models.DateTimeField(
        null=True, blank=True, help_text="Of the last load ahead that succeeded; empty: none has since it was unloaded."
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["name"]
        constraints: ClassVar[list[Any]] = [models.UniqueConstraint(fields=["base", "name"], name="adapter_name")]

    def __str__(self) -> str:
        return self.name
