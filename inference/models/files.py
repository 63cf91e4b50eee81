"""Files that callers uploaded or batches wrote."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q


class StoredFile(models.Model):
    """A file of the API. Its bytes are named by their digest (``inference.files.store``); rows may share them."""

    file_id = models.CharField(max_length=40, unique=True)
    tenant = models.CharField(max_length=64)
    filename = models.CharField(max_length=255)
    purpose = models.CharField(
        max_length=32, help_text="batch: uploaded; batch_output: written by a batch; state: a saved state."
    )
    size_bytes = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64)
    request_key = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001 (null: no key; unique)
    request_digest = models.CharField(max_length=64, blank=True, default="", help_text="Of the request with the key.")
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "inference"
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[Any]] = [
            models.UniqueConstraint(
                fields=["tenant", "request_key"], condition=Q(request_key__isnull=False), name="file_request_key"
            ),
        ]
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["tenant", "-id"], name="file_by_tenant"),
            models.Index(fields=["sha256"], name="file_by_digest"),
            models.Index(fields=["expires_at"], name="file_expiry"),
        ]

    def __str__(self) -> str:
        return f"{self.file_id} ({self.filename})"
