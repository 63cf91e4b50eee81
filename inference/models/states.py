"""States that callers saved under a name."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from inference.models.files import StoredFile


class StoredState(models.Model):
    """A saved state with a name. Its file has the bytes and decides when the state expires."""

    file = models.OneToOneField(StoredFile, on_delete=models.CASCADE, related_name="state")
    tenant = models.CharField(max_length=64)
    name = models.CharField(max_length=64)
    model = models.CharField(max_length=256, help_text="Served name, or what an uploaded file says; for people.")
    weights = models.CharField(max_length=64, help_text="Digest of the weights that it belongs to.")
    num_tokens = models.PositiveBigIntegerField()
    has_conversation = models.BooleanField(help_text="Whether messages can follow it.")
    is_pinned = models.BooleanField(default=False)
    request_id = models.CharField(max_length=80, blank=True, default="", help_text="The request that saved it.")
    last_used_at = models.DateTimeField()

    class Meta:
        app_label = "inference"
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(fields=["tenant", "name"], name="state_by_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.model}"
