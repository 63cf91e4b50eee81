"""Rows of inference: API keys, usage, queued generations. Reading and writing is in ``auth``, ``usage`` and ``jobs``.

JSON that users write or models generate is kept as text columns: PostgreSQL's jsonb refuses U+0000, which a
prompt may hold, and nothing here searches inside it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from inference.values.principal import DEFAULT_SCOPES, SCOPES

_EMPTY = "Empty: the server's default for all keys."


def default_scopes() -> list[str]:
    """Of keys that were made without naming scopes."""
    return list(DEFAULT_SCOPES)


class ApiKey(models.Model):
    """A key for programs; see ``inference.access.api_keys`` for its form. The key itself is not stored."""

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"scopes": list, "allowed_models": list}

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, unique=True, help_text="The key's public part.")
    digest = models.CharField(max_length=64, help_text="HMAC-SHA-256 of the key under the site's secret.")
    scopes = models.JSONField(
        default=default_scopes, help_text="What it may do; names of inference.values.principal.SCOPES."
    )
    allowed_models = models.JSONField(default=list, blank=True, help_text="Served names; empty: all models.")
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    max_concurrent = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    max_queued_lines = models.PositiveIntegerField(null=True, blank=True, help_text=_EMPTY)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]
        verbose_name = "API key"
        permissions: ClassVar[list[Any]] = [
            (f"scope_{name}", f"Can use the scope {name} with a session") for name in SCOPES
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @staticmethod
    def valid() -> Q:
        """Keys that weren't revoked and haven't expired."""
        return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
