"""Plain admin pages: API keys (made and revoked here), usage and jobs (to look at)."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path, reverse
from django.utils.html import format_html

from inference.access.api_keys import api_key_create, api_key_revoke, key_rules_check
from inference.errors import BlazrError
from inference.files.services import files_remove
from inference.files.store import file_pieces, open_file
from inference.host.units import format_bytes
from inference.models import (
    ApiKey,
    Batch,
    GenerationJob,
    Schedule,
    StoredFile,
    StoredState,
    UsageDay,
    UsageRecord,
    WebhookDelivery,
)
from inference.records.usage_report import CHUNK_ROWS, csv_text
from inference.values.limits import KeyLimits
from inference.values.principal import DEFAULT_SCOPES, SCOPES
from models_registry.admin import ReadOnlyRows

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import QuerySet
    from django.forms import ModelForm
    from django.http import HttpRequest
    from django.urls import URLPattern

    _ApiKeyAdmin = admin.ModelAdmin[ApiKey]
    _ApiKeyForm = forms.ModelForm[ApiKey]
    _UsageAdmin = admin.ModelAdmin[UsageRecord]
    _UsageDayAdmin = admin.ModelAdmin[UsageDay]
    _JobAdmin = admin.ModelAdmin[GenerationJob]
    _FileAdmin = admin.ModelAdmin[StoredFile]
    _StateAdmin = admin.ModelAdmin[StoredState]
    _BatchAdmin = admin.ModelAdmin[Batch]
    _ScheduleAdmin = admin.ModelAdmin[Schedule]
    _DeliveryAdmin = admin.ModelAdmin[WebhookDelivery]
else:
    _ApiKeyAdmin = _UsageAdmin = _UsageDayAdmin = _JobAdmin = admin.ModelAdmin
    _FileAdmin = _StateAdmin = _BatchAdmin = _ScheduleAdmin = _DeliveryAdmin = admin.ModelAdmin
    _ApiKeyForm = forms.ModelForm


class ApiKeyForm(_ApiKeyForm):
    """Scopes as boxes to tick, models as a list with commas, limits within their range."""

    scopes = forms.MultipleChoiceField(
        choices=[(name, f"{name}: {text}") for name, text in SCOPES.items()],
        widget=forms.CheckboxSelectMultiple,
        initial=DEFAULT_SCOPES,
    )
    allowed_models = forms.CharField(required=False, help_text="Served names with commas between; empty: all models.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["allowed_models"] = ", ".join(self.instance.allowed_models)

    def clean_allowed_models(self) -> list[str]:
        """The names as a list."""
        return [name.strip() for name in self.cleaned_data["allowed_models"].split(",") if name.strip()]

    def clean(self) -> dict[str, Any] | None:
        """Check what ``api_key_create`` checks, so that a change is held to it too."""
        cleaned = super().clean()
        values = self.cleaned_data
        limits = KeyLimits(
            requests=values.get("requests_per_minute"),
            tokens=values.get("tokens_per_minute"),
            concurrent=values.get("max_concurrent"),
            lines=values.get("max_queued_lines"),
        )
        try:
            key_rules_check(scopes=values.get("scopes", ()), models=values.get("allowed_models", ()), limits=limits)
        except BlazrError as error:
            raise forms.ValidationError(error.message) from None
        return cleaned


@admin.register(ApiKey)
class ApiKeyAdmin(_ApiKeyAdmin):
    """A new key is shown once, in the message after saving; keys aren't deleted but revoked."""

    form = ApiKeyForm
    list_display = ("name", "prefix", "shown_scopes", "created_at", "expires_at", "revoked_at")
    fields = (
        "name",
        "expires_at",
        "scopes",
        "allowed_models",
        "requests_per_minute",
        "tokens_per_minute",
        "max_concurrent",
        "max_queued_lines",
        "prefix",
        "created_at",
        "revoked_at",
    )
    readonly_fields = ("prefix", "created_at", "revoked_at")
    actions = ("revoke",)

    @admin.display(description="scopes")
    def shown_scopes(self, obj: ApiKey) -> str:
        """Scopes in one cell."""
        return ", ".join(obj.scopes)

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """Usage records name the key."""
        return False

    def save_model(self, request: HttpRequest, obj: ApiKey, form: ModelForm[ApiKey], change: bool) -> None:
        """Make a key, or change what it is allowed; a change holds within a second, like a revocation."""
        if change:
            super().save_model(request, obj, form, change)
            return
        try:
            row, key = api_key_create(
                name=obj.name,
                expires_at=obj.expires_at,
                scopes=obj.scopes,
                models=obj.allowed_models,
                limits=KeyLimits(
                    obj.requests_per_minute, obj.tokens_per_minute, obj.max_concurrent, obj.max_queued_lines
                ),
            )
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

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        """End keys for good."""
        for row in queryset:
            api_key_revoke(prefix=row.prefix)


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyRows, _UsageAdmin):
    """The request log: single requests, for as long as they are kept."""

    list_display = (
        "created_at",
        "request_id",
        "tenant",
        "model",
        "endpoint",
        "outcome",
        "prompt_tokens",
        "completion_tokens",
        "duration_s",
    )
    list_filter = ("endpoint", "outcome")
    search_fields = ("request_id", "=tenant", "=model")
    date_hierarchy = "created_at"
    show_full_result_count = False


@admin.register(UsageDay)
class UsageDayAdmin(ReadOnlyRows, _UsageDayAdmin):
    """Who used how much."""

    list_display = (
        "day",
        "tenant",
        "model",
        "requests",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "engine_s",
        "queue_s",
        "joules",
    )
    list_filter = ("model",)
    search_fields = ("=tenant", "=model")
    date_hierarchy = "day"
    actions = ("export",)

    @admin.action(description="Export the selected rows as CSV", permissions=["view"])
    def export(self, request: HttpRequest, queryset: QuerySet[UsageDay]) -> StreamingHttpResponse:
        """A file of the rows as they are."""
        names = [field.name for field in UsageDay._meta.concrete_fields if field.name != "id"]
        rows = queryset.values_list(*names).iterator(chunk_size=CHUNK_ROWS)
        return StreamingHttpResponse(
            (csv_text([row]) for row in chain([names], rows)),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="usage.csv"'},
        )


@admin.register(GenerationJob)
class GenerationJobAdmin(ReadOnlyRows, _JobAdmin):
    """Queued generations; prompts and answers stay out of the admin."""

    list_display = ("job_id", "created_at", "state", "model", "tenant", "batch_label", "completion_tokens")
    list_filter = ("state", "endpoint")
    exclude = ("plan", "result")


@admin.register(StoredFile)
class StoredFileAdmin(ReadOnlyRows, _FileAdmin):
    """Files of the API; their content is left to the API."""

    list_display = ("file_id", "created_at", "filename", "purpose", "size_bytes", "tenant", "expires_at")
    list_filter = ("purpose",)


@admin.register(StoredState)
class StoredStateAdmin(ReadOnlyRows, _StateAdmin):
    """Saved states of all callers, to look at, delete and download; a file has its prompt in it."""

    list_display = (
        "name",
        "model",
        "weights_digest",
        "num_tokens",
        "size",
        "last_used_at",
        "is_pinned",
        "expires_at",
        "tenant",
        "content",
    )
    list_filter = ("is_pinned", "model")
    search_fields = ("=name", "=tenant", "=model")
    list_select_related = ("file",)

    @admin.display(description="weights", ordering="weights")
    def weights_digest(self, obj: StoredState) -> str:
        """The revision of the model, as 'blazr state show' begins it."""
        return f"{obj.weights[:16]}…"

    @admin.display(description="size", ordering="file__size_bytes")
    def size(self, obj: StoredState) -> str:
        """Of the file."""
        return format_bytes(obj.file.size_bytes)

    @admin.display(description="expires", ordering="file__expires_at")
    def expires_at(self, obj: StoredState) -> datetime | None:
        """As its file does."""
        return obj.file.expires_at

    @admin.display(description="file")
    def content(self, obj: StoredState) -> str:
        """A link to the file."""
        return format_html('<a href="{}">download</a>', reverse("admin:inference_storedstate_content", args=[obj.pk]))

    def get_list_display(self, request: HttpRequest) -> Any:
        """The link is for those who may follow it."""
        return [name for name in self.list_display if name != "content" or _sees_content(request)]

    def get_exclude(self, request: HttpRequest, obj: StoredState | None = None) -> tuple[str, ...]:
        """The same on a state's own page, whose fields are those of the row."""
        return ("request_id",)

    def get_urls(self) -> list[URLPattern]:
        """Add the download."""
        view = self.admin_site.admin_view(self.download)
        return [path("<int:key>/content/", view, name="inference_storedstate_content"), *super().get_urls()]

    def download(self, request: HttpRequest, key: int) -> StreamingHttpResponse:
        """Stream a state's file."""
        if not _sees_content(request):
            raise PermissionDenied
        row = get_object_or_404(StoredState.objects.select_related("file"), pk=key)
        try:
            file = open_file(row.file.sha256)
        except FileNotFoundError:
            raise Http404("The content of the state is gone.") from None
        # Piece by piece: Django would read a whole file into memory before it sends any of it.
        response = StreamingHttpResponse(file_pieces(file), content_type="application/octet-stream")
        response["Content-Length"] = str(row.file.size_bytes)
        response["Content-Disposition"] = f'attachment; filename="{row.name}.state"'
        return response

    def has_delete_permission(self, request: HttpRequest, obj: StoredState | None = None) -> bool:
        """Requests that have read a state go on."""
        return request.user.has_perm("inference.delete_storedstate")

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """Say what goes: the states; their files are theirs alone."""
        names = [str(row) for row in objs]
        return names, {"saved states": len(names)}, set(), []

    def delete_model(self, request: HttpRequest, obj: StoredState) -> None:
        """Remove the file, too."""
        files_remove(StoredFile.objects.filter(pk=obj.file_id))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[StoredState]) -> None:
        """Remove the files, too."""
        files_remove(StoredFile.objects.filter(pk__in=list(queryset.values_list("file_id", flat=True))))


def _sees_content(request: HttpRequest) -> bool:
    """Whether the account may read what other callers wrote, as with the API."""
    return request.user.has_perms(["inference.view_storedstate", "inference.scope_admin"])


@admin.register(Batch)
class BatchAdmin(ReadOnlyRows, _BatchAdmin):
    """Batches; the webhook's secret stays out of the admin."""

    list_display = (
        "batch_id",
        "created_at",
        "state",
        "tenant",
        "priority",
        "num_total",
        "num_completed",
        "num_failed",
        "completion_tokens",
        "expires_at",
    )
    list_filter = ("state", "endpoint")
    exclude = ("webhook_secret",)


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyRows, _ScheduleAdmin):
    """Schedules: paused and resumed here, made by the console and the API. Their request may hold a secret."""

    list_display = ("schedule_id", "name", "action", "cron", "time_zone", "is_enabled", "tenant", "next_run_at")
    list_filter = ("action", "is_enabled")
    exclude = ("request",)
    actions = ("enable", "disable")

    def has_switch_permission(self, request: HttpRequest) -> bool:
        """Whether the account may switch schedules; their other members are read only."""
        return request.user.has_perm("inference.change_schedule")

    @admin.action(description="Enable the selected schedules", permissions=["switch"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Let them run again."""
        queryset.update(is_enabled=True)

    @admin.action(description="Disable the selected schedules", permissions=["switch"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Start nothing until they are enabled."""
        queryset.update(is_enabled=False)


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(ReadOnlyRows, _DeliveryAdmin):
    """Messages to other servers, and how they went."""

    list_display = ("message_id", "batch", "created_at", "attempts", "next_attempt_at", "delivered_at", "last_error")
