"""Stored responses of the Responses API."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from inference.models.jobs import GenerationJob


class StoredResponse(models.Model):
    """A response that its caller asked to be kept (``store: true``); see ``inference.records.stored_responses``.

    ``previous_id`` names the response before it without a foreign key: the older one may be deleted. One that runs in
    the background has a job, whose events say how far it is; its ``body`` is written again when it has ended.
    """

    JSON_COLUMNS: ClassVar[dict[str, type]] = {"body": dict, "input_items": list}
    JSON_MEMBERS: ClassVar[dict[str, tuple[str, ...]]] = {"body": ("status",)}

    response_id = models.CharField(max_length=64, unique=True)
    tenant = models.CharField(max_length=64)
    previous_id = models.CharField(max_length=64, blank=True, default="")
    body = models.TextField(help_text="The response object, JSON.")
    input_items = models.TextField(help_text="Its own input items, a JSON list.")
    size_bytes = models.PositiveBigIntegerField(default=0, help_text="Of the body and the input items.")
    job = models.OneToOneField(GenerationJob, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar[list[str]] = ["-created_at"]
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["created_at"], name="response_by_age"),
            models.Index(fields=["tenant", "size_bytes"], name="response_bytes_by_tenant"),
        ]

    def __str__(self) -> str:
        return self.response_id
