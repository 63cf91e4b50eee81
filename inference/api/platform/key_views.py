"""Create, list and revoke API keys over HTTP; requires the scope admin wherever a key is required."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from inference.access.api_keys import MAX_MODEL_CHARS, api_key_create, api_key_revoke
from inference.api.base import ApiView, json_body, json_response, number_parameter
from inference.api.schemas import documented
from inference.dialects.fields import StrictCharField, StrictIntegerField, StrictListField, optional, optional_integer
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import InvalidRequest
from inference.models import ApiKey
from inference.models.readable_rows import readable_rows
from inference.values.limits import MAX_LIMIT, KeyLimits
from inference.values.principal import DEFAULT_SCOPES, SCOPES

MAX_PAGE = 500
MAX_MODELS = 1_000
MAX_TIME = 253_402_300_799
_NO_STORE = {"Cache-Control": "no-store"}


def _limit(text: str) -> StrictIntegerField:
    return optional_integer(1, MAX_LIMIT, f"{text} Default: the server's.")


class KeyRequestSerializer(StrictSerializer):
    """Body of POST /v1/keys."""

    name = StrictCharField(max_length=100, help_text="What the key is for.")
    scopes = optional(
        StrictListField,
        f"Of {', '.join(SCOPES)}. Default: {', '.join(DEFAULT_SCOPES)}.",
        child=StrictCharField(max_length=20),
        min_length=1,
        max_length=len(SCOPES),
    )
    models = optional(
        StrictListField,
        "Served names that it may use. Default: all.",
        child=StrictCharField(max_length=MAX_MODEL_CHARS),
        max_length=MAX_MODELS,
    )
    expires_at = optional_integer(1, MAX_TIME, "Unix time. Default: never.")
    requests_per_minute = _limit("Requests a minute.")
    tokens_per_minute = _limit("Tokens a minute.")
    max_concurrent = _limit("Requests that are open at a time.")
    max_queued_lines = _limit("Lines of batches and jobs that wait or run.")


class KeySerializer(serializers.Serializer[Any]):
    """A key, without its secret."""

    id = serializers.CharField(help_text="Its public part.")
    object = serializers.RegexField("^api_key$")
    name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    models = serializers.ListField(child=serializers.CharField(), help_text="Empty: all.")
    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    max_concurrent = serializers.IntegerField(allow_null=True)
    max_queued_lines = serializers.IntegerField(allow_null=True)
    created_at = serializers.IntegerField()
    expires_at = serializers.IntegerField(allow_null=True)
    revoked_at = serializers.IntegerField(allow_null=True)


class NewKeySerializer(KeySerializer):
    """A new key, with its secret."""

    value = serializers.CharField(help_text="The key itself: shown here once, stored nowhere.")


class KeyListSerializer(serializers.Serializer[Any]):
    """A page of keys, newest first."""

    object = serializers.RegexField("^list$")
    data = KeySerializer(many=True)  # type: ignore[assignment]
    has_more = serializers.BooleanField()


def key_object(row: ApiKey) -> dict[str, Any]:
    """Return the API's object of a key."""
    return {
        "id": row.prefix,
        "object": "api_key",
        "name": row.name,
        "scopes": row.scopes,
        "models": row.allowed_models,
        "requests_per_minute": row.requests_per_minute,
        "tokens_per_minute": row.tokens_per_minute,
        "max_concurrent": row.max_concurrent,
        "max_queued_lines": row.max_queued_lines,
        **{
            name: None if moment is None else int(moment.timestamp())
            for name, moment in (
                ("created_at", row.created_at),
                ("expires_at", row.expires_at),
                ("revoked_at", row.revoked_at),
            )
        },
    }


class KeysView(ApiView):
    """/v1/keys."""

    @documented(
        operation_id="keys_create",
        summary="Make an API key",
        description="The response has the key itself, once. An Idempotency-Key doesn't give it a second time either.",
        request=KeyRequestSerializer,
        responses={201: NewKeySerializer},
        errors=(400, 401, 403, 413, 415, 503),
        tags=["keys"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Create a key."""
        values = await json_body(request, KeyRequestSerializer.shared().parse)
        expires = values.get("expires_at")
        limits = KeyLimits(
            requests=values.get("requests_per_minute"),
            tokens=values.get("tokens_per_minute"),
            concurrent=values.get("max_concurrent"),
            lines=values.get("max_queued_lines"),
        )
        row, key = await sync_to_async(api_key_create)(
            name=values["name"],
            expires_at=None if expires is None else datetime.fromtimestamp(expires, UTC),
            scopes=values.get("scopes", DEFAULT_SCOPES),
            models=values.get("models", ()),
            limits=limits,
        )
        return json_response({**key_object(row), "value": key}, status=201, headers=_NO_STORE)

    @documented(
        operation_id="keys_list",
        summary="List API keys, newest first",
        parameters=[
            OpenApiParameter("limit", int, description=f"1 to {MAX_PAGE}, default 100."),
            OpenApiParameter("offset", int, description="Keys to skip, default 0."),
        ],
        responses={200: KeyListSerializer},
        errors=(400, 401, 403, 503),
        tags=["keys"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """List all keys, including revoked ones."""
        for name in request.GET:
            if name not in ("limit", "offset"):
                raise InvalidRequest(f"{name[:80]!r} is not a parameter of this endpoint; remove it.", param=name[:80])
        limit = number_parameter(request, "limit", 100, 1, MAX_PAGE)
        offset = number_parameter(request, "offset", 0, 0, 10**9)

        def read() -> dict[str, Any]:
            rows = ApiKey.objects.order_by("-pk")
            # The page is a slice, of which damaged rows can't be left out.
            keys = list(rows.values_list("pk", flat=True)[offset : offset + limit + 1])
            data = [key_object(row) for row in readable_rows(rows.filter(pk__in=keys[:limit]))]
            return {"object": "list", "data": data, "has_more": len(keys) > limit}

        return json_response(await sync_to_async(read)())


class KeyView(ApiView):
    """/v1/keys/{id}."""

    @documented(
        operation_id="keys_revoke",
        summary="Revoke an API key",
        description="For good, within a second. Revoking twice changes nothing.",
        responses={200: KeySerializer},
        errors=(401, 403, 404, 503),
        tags=["keys"],
    )
    async def delete(self, request: HttpRequest, key_id: str) -> HttpResponseBase:
        """Revoke a key."""
        row = await sync_to_async(api_key_revoke)(prefix=key_id)
        return json_response(key_object(row))
