"""Plain admin pages: API keys (made and revoked here), usage and jobs (to look at)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages

from inference.auth import api_key_create, api_key_revoke
from inference.errors import BlazrError
from inference.models import ApiKey, GenerationJob, UsageRecord

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.forms import ModelForm
    from django.http import HttpRequest

    _ApiKeyAdmin = admin.ModelAdmin[ApiKey]
    _UsageAdmin = admin.ModelAdmin[UsageRecord]
    _JobAdmin = admin.ModelAdmin[GenerationJob]
else:
    _ApiKeyAdmin = _UsageAdmin = _JobAdmin = admin.ModelAdmin


@admin.register(ApiKey)
class ApiKeyAdmin(_ApiKeyAdmin):
    """A new key is shown once, in the message after saving; keys aren't deleted but revoked."""

    list_display = ("name", "prefix", "created_at", "expires_at", "revoked_at")
    fields = ("name", "expires_at", "prefix", "created_at", "revoked_at")
    readonly_fields = ("prefix", "created_at", "revoked_at")
    actions = ("revoke",)

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """Usage records name the key."""
        return False

    def save_model(self, request: HttpRequest, obj: ApiKey, form: ModelForm[ApiKey], change: bool) -> None:
        """Make a key, or change a key's name or expiry."""
        if change:
            super().save_model(request, obj, form, change)
            return
        try:
            row, key = api_key_create(name=obj.name, expires_at=obj.expires_at)
        except BlazrError as error:
            messages.error(request, error.message)
            return
        obj.pk, obj.prefix, obj.digest, obj.created_at = row.pk, row.prefix, row.digest, row.created_at
        messages.warning(request, f"The key is {key}. It is not stored: copy it now.")

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """A refused key has no row that anything could relate to."""
        if form.instance.pk is not None:
            super().save_related(request, form, formsets, change)

    def log_addition(self, request: HttpRequest, obj: ApiKey, message: Any) -> Any:
        """Nothing was added when the key was refused."""
        return super().log_addition(request, obj, message) if obj.pk is not None else None

    @admin.action(description="Revoke the selected keys")
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        """End keys for good."""
        for row in queryset:
            api_key_revoke(prefix=row.prefix)


class _ReadOnly:
    """Rows that only services write."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(UsageRecord)
class UsageRecordAdmin(_ReadOnly, _UsageAdmin):
    """Who used how much."""

    list_display = ("created_at", "tenant", "model", "endpoint", "outcome", "prompt_tokens", "completion_tokens")
    list_filter = ("endpoint", "outcome")
    date_hierarchy = "created_at"


@admin.register(GenerationJob)
class GenerationJobAdmin(_ReadOnly, _JobAdmin):
    """Queued generations; prompts and answers stay out of the admin."""

    list_display = ("job_id", "created_at", "state", "model", "tenant", "batch_label", "completion_tokens")
    list_filter = ("state", "endpoint")
    exclude = ("plan", "result")
