"""Show the registry's rows on read-only admin pages; the pages for operators are in ``views``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from models_registry.models import AliasRevision, Checkpoint, CheckpointOverride, ModelAlias, Upload, UploadFile
from models_registry.sign_in import SignInForm

admin.site.login_form = SignInForm

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    _CheckpointAdmin = admin.ModelAdmin[Checkpoint]
    _OverrideInline = admin.TabularInline[CheckpointOverride, Checkpoint]
    _UploadFileInline = admin.TabularInline[UploadFile, Upload]
    _UploadAdmin = admin.ModelAdmin[Upload]
    _AliasAdmin = admin.ModelAdmin[ModelAlias]
    _RevisionInline = admin.TabularInline[AliasRevision, ModelAlias]
else:
    _CheckpointAdmin = _UploadAdmin = _AliasAdmin = admin.ModelAdmin
    _OverrideInline = _UploadFileInline = _RevisionInline = admin.TabularInline


class CheckpointOverrideInline(_OverrideInline):
    """The history of overrides, read only: a change needs a new inspection."""

    model = CheckpointOverride
    extra = 0
    can_delete = False
    readonly_fields = ("fact", "value", "author_name", "created_at", "cleared_at")
    exclude = ("author",)

    def has_add_permission(self, request: HttpRequest, obj: Checkpoint | None = None) -> bool:
        """False: overrides are set on the model's page, which inspects again."""
        return False


@admin.register(Checkpoint)
class CheckpointAdmin(_CheckpointAdmin):
    """Checkpoints, read only: the services write them, which keep files and rows together."""

    list_display = ("served_model_name", "model_type", "architecture", "dtype", "source", "state", "updated_at")
    list_filter = ("state", "source", "format", "model_type")
    search_fields = ("served_model_name", "path", "origin")
    exclude = ("inspection", "file_stamps")
    inlines = (CheckpointOverrideInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Checkpoint]:
        """Leave the large columns out."""
        return super().get_queryset(request).defer("inspection", "file_stamps")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """False: registering inspects files, which the admin's form can't."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Checkpoint | None = None) -> bool:
        """False: read only."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Checkpoint | None = None) -> bool:
        """False: deleting removes files and unloads, which the admin's form can't."""
        return False


class UploadFileInline(_UploadFileInline):
    """Files of an upload, read only."""

    model = UploadFile
    extra = 0
    can_delete = False
    readonly_fields = ("number", "name", "size_bytes", "received_bytes", "sha256")


@admin.register(Upload)
class UploadAdmin(_UploadAdmin):
    """Uploads, and the reasons of refusals."""

    list_display = ("served_model_name", "state", "reason", "size_bytes", "owner", "created_at")
    list_filter = ("state",)
    inlines = (UploadFileInline,)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """False: uploads come from browsers."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Upload | None = None) -> bool:
        """False: read only."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Upload | None = None) -> bool:
        """False: the sweep removes rows together with their files."""
        return False


class AliasRevisionInline(_RevisionInline):
    """The revisions of an alias, read only."""

    model = AliasRevision
    extra = 0
    can_delete = False
    readonly_fields = ("number", "checkpoint_name", "author_name", "created_at")
    exclude = ("checkpoint",)

    def has_add_permission(self, request: HttpRequest, obj: ModelAlias | None = None) -> bool:
        """False: promoting numbers the revisions."""
        return False


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
