"""Chats of the playground that accounts keep."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.conf import settings
from django.db import models


class SavedChat(models.Model):
    """A conversation or completion of the playground; only its account sees it.

    ``content`` has the mode (chat or completion), the system message, the sampling parameters and texts that were set,
    and the turns with their branches, perhaps of a second column too: ``inference.pages.chats.ChatSerializer``.
    """

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"content": dict}
    JSON_MEMBERS: ClassVar[dict[str, tuple[str, ...]]] = {"content": ("mode", "turns")}

    chat_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    title = models.CharField(max_length=100)
    model = models.CharField(max_length=128, help_text="Served model name.")
    content = models.TextField(help_text="JSON.")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-updated_at"]
        indexes: ClassVar[list[Any]] = [models.Index(fields=["owner", "-updated_at"], name="chat_by_owner")]

    def __str__(self) -> str:
        return self.title
