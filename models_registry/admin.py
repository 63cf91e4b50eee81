"""Show the registry's rows on read-only admin pages; the pages for operators are in ``views``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList

from inference.models.readable_rows import readable_rows
from models_registry.models import (
    Adapter,
    AliasRevision,
    Checkpoint,
    CheckpointOverride,
    ModelAlias,
    Upload,
    UploadFile,
)
from models_registry.sign_in import SignInForm

admin.site.login_form = SignInForm

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    _AdapterAdmin = admin.ModelAdmin[Adapter]
    _CheckpointAdmin = admin.ModelAdmin[Checkpoint]
    _OverrideInline = admin.TabularInline[CheckpointOverride, Checkpoint]
    _UploadFileInline = admin.TabularInline[UploadFile, Upload]
    _UploadAdmin = admin.ModelAdmin[Upload]
    _AliasAdmin = admin.ModelAdmin[ModelAlias]
    _RevisionInline = admin.TabularInline[AliasRevision, ModelAlias]
else:
    _AdapterAdmin = _CheckpointAdmin = _UploadAdmin = _AliasAdmin = admin.ModelAdmin
    _OverrideInline = _UploadFileInline = _RevisionInline = admin.TabularInline


class ReadableChangeList(ChangeList):
    """A change list that leaves damaged rows out."""

    def get_results(self, request: HttpRequest) -> None:
        """Read one page of rows, without the damaged ones."""
        super().get_results(request)
        # The page is a slice, which can't be filtered row by row.
        keys = list(self.result_list.values_list("pk", flat=True))
        self.result_list = readable_rows(self.queryset.filter(pk__in=keys))


class ReadOnlyRows:
    """Rows that are only shown: services write them, which keep files, rows and revisions together."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ReadableChangeList

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class CheckpointOverrideInline(ReadOnlyRows, _OverrideInline):
    """The history of overrides, read only: a change needs a new inspection."""

    model = CheckpointOverride
    extra = 0
    fk_name = "checkpoint"
    readonly_fields = ("fact", "value", "author_name", "created_at", "cleared_at")
    exclude = ("author", "source")


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnlyRows, _CheckpointAdmin):
    """Checkpoints, read only: the services write them, which keep files and rows together."""

    list_display = ("served_model_name", "model_type", "architecture", "dtype", "source", "state", "updated_at")
    list_filter = ("state", "source", "format", "model_type")
    search_fields = ("served_model_name", "path", "origin")
    exclude = ("inspection", "file_stamps")
    inlines = (CheckpointOverrideInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Checkpoint]:
        return super().get_queryset(request).defer("inspection", "file_stamps")


@admin.register(Adapter)
class AdapterAdmin(ReadOnlyRows, _AdapterAdmin):
    """LoRA adapters, read only: a registration checks the files."""

    list_display = ("name", "base", "kind", "rank", "size_bytes", "state", "owner", "created_at")
    list_filter = ("state", "kind")
    list_select_related = ("base", "owner")
    search_fields = ("name", "base__served_model_name", "path")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Adapter]:
        return super().get_queryset(request).defer("base__inspection", "base__file_stamps")


class UploadFileInline(ReadOnlyRows, _UploadFileInline):
    """Files of an upload, read only."""

    model = UploadFile
    extra = 0
    readonly_fields = ("number", "name", "size_bytes", "received_bytes", "sha256")


@admin.register(Upload)
class UploadAdmin(ReadOnlyRows, _UploadAdmin):
    """Uploads, and the reasons of refusals."""

    list_display = ("served_model_name", "state", "reason", "size_bytes", "owner", "created_at")
    list_filter = ("state",)
    inlines = (UploadFileInline,)


class AliasRevisionInline(ReadOnlyRows, _RevisionInline):
    """The revisions of an alias, read only."""

    model = AliasRevision
    extra = 0
    readonly_fields = ("number", "checkpoint_name", "adapter_name", "author_name", "created_at")
    exclude = ("checkpoint", "adapter")


@admin.register(ModelAlias)
class ModelAliasAdmin(_AliasAdmin):
    """Aliases; the API promotes and rolls them back."""

    list_display = ("name", "current", "updated_at")
    search_fields = ("name",)
    readonly_fields = ("name", "current", "created_at", "updated_at")
    inlines = (AliasRevisionInline,)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """False: promoting creates aliases."""
        return False
