"""List the revisions of model aliases, promote checkpoints and adapters, and roll back, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework import serializers

from inference.api.base import ApiView, json_body, json_response
from inference.api.schemas import documented
from inference.dialects.fields import StrictCharField, StrictIntegerField
from inference.dialects.strict_serializer import StrictSerializer
from inference.serving.promotion import served_promote
from inference.serving.served_models import served_model_get
from inference.values.served_model import ServedModel
from models_registry.aliases import alias_get, alias_rollback

if TYPE_CHECKING:
    from models_registry.models import ModelAlias

_ERRORS = (400, 401, 403, 404, 409, 415, 503)


class PromoteRequestSerializer(StrictSerializer):
    """Body of POST /v1/models/{alias}/promote."""

    model = StrictCharField(
        max_length=256, help_text="The checkpoint, or the adapter (BASE:NAME), that the alias is to mean."
    )


class RollbackRequestSerializer(StrictSerializer):
    """Body of POST /v1/models/{alias}/rollback."""

    revision = StrictIntegerField(
        required=False, min_value=1, max_value=10**9 - 1, allow_null=True, help_text="Default: the one before."
    )


class AliasRevisionSerializer(serializers.Serializer[Any]):
    """A checkpoint or an adapter that the alias refers to, or referred to earlier."""

    revision = serializers.IntegerField()
    model = serializers.CharField(help_text="Name of the checkpoint or adapter at that time.")
    is_current = serializers.BooleanField()
    is_available = serializers.BooleanField(help_text="false: it has been deleted.")
    created_at = serializers.IntegerField(help_text="Unix time.")
    author = serializers.CharField(allow_blank=True)


class AliasSerializer(serializers.Serializer[Any]):
    """An alias and its history, newest first."""

    id = serializers.CharField()
    object = serializers.RegexField(r"^model\.alias$")
    revision = serializers.IntegerField(allow_null=True)
    revisions = AliasRevisionSerializer(many=True)


class AliasRevisionsView(ApiView):
    """GET /v1/models/{alias}/revisions."""

    @documented(
        operation_id="alias_revisions",
        summary="What an alias means and meant",
        responses={200: AliasSerializer},
        errors=(401, 403, 404, 503),
        tags=["lifecycle"],
    )
    async def get(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Return the alias's revisions, newest first."""
        self.principal.check_model(model_id)
        return json_response(await sync_to_async(_alias)(model_id))


class PromoteView(ApiView):
    """POST /v1/models/{alias}/promote."""

    @documented(
        operation_id="alias_promote",
        summary="Let an alias mean another model",
        description="Makes the alias if there is none. Other web processes know within three seconds.",
        request=PromoteRequestSerializer,
        responses={200: AliasSerializer},
        errors=_ERRORS,
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Store a new revision of the alias."""
        values = await json_body(request, PromoteRequestSerializer.shared().parse)
        served = await served_model_get(name=values["model"])
        found = await sync_to_async(_promote)(model_id, served, self.principal.name)
        return json_response(found)


class RollbackView(ApiView):
    """POST /v1/models/{alias}/rollback."""

    @documented(
        operation_id="alias_rollback",
        summary="Let an alias mean what it meant before",
        request=RollbackRequestSerializer,
        responses={200: AliasSerializer},
        errors=_ERRORS,
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Make an older revision the current one."""
        values = await json_body(request, RollbackRequestSerializer.shared().parse)
        found = await sync_to_async(_rollback)(model_id, values.get("revision"))
        return json_response(found)


def _alias(name: str) -> dict[str, Any]:
    return _shown(alias_get(name))


def _promote(name: str, served: ServedModel, author_name: str) -> dict[str, Any]:
    served_promote(name=name, served=served, author_name=author_name)
    return _alias(name)


def _rollback(name: str, number: int | None) -> dict[str, Any]:
    alias_rollback(name=name, number=number)
    return _alias(name)


def _shown(alias: ModelAlias) -> dict[str, Any]:
    return {
        "id": alias.name,
        "object": "model.alias",
        "revision": alias.current.number if alias.current is not None else None,
        "revisions": [
            {
                "revision": item.number,
                "model": item.meaning,
                "is_current": item.pk == alias.current_id,
                "is_available": item.is_available,
                "created_at": int(item.created_at.timestamp()),
                "author": item.author_name,
            }
            for item in alias.revisions.all()
        ],
    }
