"""Define the rows of aliases; ``models`` has them with the others."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

MAX_NAME_CHARS = 96
"""Longest served model name."""


class ModelAlias(models.Model):
    """A name that points to a checkpoint or to an adapter; ``aliases`` may point it to another one."""

    name = models.CharField(max_length=MAX_NAME_CHARS, unique=True)
    current = models.ForeignKey(
        "AliasRevision", null=True, blank=True, on_delete=models.SET_NULL, related_name="+", help_text="What it means."
    )
    demands_passport = models.BooleanField(
        default=False, help_text="Only a checkpoint with a passport can be promoted to it."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["name"]
        verbose_name_plural = "model aliases"

    def __str__(self) -> str:
        return self.name


class AliasRevision(models.Model):
    """A checkpoint or an adapter that an alias pointed to; never changed, and kept when that is deleted."""

    alias = models.ForeignKey(ModelAlias, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    checkpoint = models.ForeignKey("Checkpoint", null=True, on_delete=models.SET_NULL, related_name="+")
    checkpoint_name = models.CharField(max_length=MAX_NAME_CHARS, help_text="Outlives the checkpoint.")
    adapter = models.ForeignKey("Adapter", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    adapter_name = models.CharField(
        max_length=MAX_NAME_CHARS, blank=True, default="", help_text="Outlives the adapter; empty: it meant none."
    )
    author_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-number"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["alias", "number"], name="alias_revision_number")
        ]

    def __str__(self) -> str:
        return f"{self.alias_id}@{self.number}"

    @property
    def meaning(self) -> str:
        """Name of the checkpoint, or ``BASE:NAME`` of the adapter, at that time."""
        return f"{self.checkpoint_name}:{self.adapter_name}" if self.adapter_name else self.checkpoint_name

    @property
    def is_available(self) -> bool:
        """Whether what it meant is still registered."""
        return self.checkpoint_id is not None and (not self.adapter_name or self.adapter_id is not None)
