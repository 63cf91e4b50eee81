"""Serve GET /v1/usage: the usage of a key, or of all keys for operators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from inference.api.base import ApiView, json_response, number_parameter
from inference.api.schemas import documented
from inference.errors import InvalidRequest, PermissionRefused
from inference.records.usage_report import UsageQuery, csv_chunks, tenant_of_key, usage_objects, usage_query

MAX_ROWS = 10_000
DEFAULT_ROWS = 1_000
_PARAMETERS = ("from", "to", "group_by", "key", "model", "format", "limit", "offset")


class UsageRowSerializer(serializers.Serializer[Any]):
    """Sums of one group; the members of group_by name the group."""

    day = serializers.DateField(required=False)
    key = serializers.CharField(required=False, help_text="A key's public part, local (no key), or user:N (a session).")
    key_name = serializers.CharField(required=False)
    model = serializers.CharField(required=False)
    requests = serializers.IntegerField(min_value=0)
    prompt_tokens = serializers.IntegerField(min_value=0)
    cached_tokens = serializers.IntegerField(min_value=0, help_text="Prompt tokens found in the prefix cache.")
    completion_tokens = serializers.IntegerField(min_value=0)
    engine_seconds = serializers.FloatField(min_value=0, help_text="Time in the engine, beside other requests.")
    queue_seconds = serializers.FloatField(min_value=0, help_text="Time before that, loads of the model included.")
    total_tokens = serializers.IntegerField(min_value=0)
    energy_wh = serializers.FloatField(
        min_value=0,
        allow_null=True,
        help_text="An estimate: the group's part, by computed tokens, of what the models' devices used while they "
        "computed. null: nothing was measured.",
    )
    energy_cost = serializers.FloatField(
        min_value=0, allow_null=True, help_text="The same by the price of today; null: nobody has set one."
    )
    currency = serializers.CharField(allow_null=True, help_text="Of the cost.")


class UsageListSerializer(serializers.Serializer[Any]):
    """Usage of a span of days."""

    object = serializers.RegexField("^list$")
    first_day = serializers.DateField()
    last_day = serializers.DateField()
    data = UsageRowSerializer(many=True)  # type: ignore[assignment]
    has_more = serializers.BooleanField(help_text="More rows follow: ask again with a higher offset.")


class UsageView(ApiView):
    """GET /v1/usage."""

    @documented(
        operation_id="usage_list",
        summary="Requests, tokens, seconds and energy per key, model and day",
        description="Days are UTC. A request shows within a few seconds after its end.",
        parameters=[
            OpenApiParameter("from", OpenApiTypes.DATE, description="First day; default: 29 days before the last."),
            OpenApiParameter("to", OpenApiTypes.DATE, description="Last day, included; default: today."),
            OpenApiParameter(
                "group_by", str, description="Of key, model and day, with commas between. Default: day,key,model."
            ),
            OpenApiParameter("key", str, description="Of one key only, by its public part."),
            OpenApiParameter("model", str, description="Of one model only."),
            OpenApiParameter("format", str, enum=["json", "csv"], description="csv: all rows as a file."),
            OpenApiParameter("limit", int, description=f"Rows, 1 to {MAX_ROWS}, default {DEFAULT_ROWS}."),
            OpenApiParameter("offset", int, description="Rows to skip, default 0."),
        ],
        responses={(200, "application/json"): UsageListSerializer, (200, "text/csv"): OpenApiTypes.STR},
        errors=(400, 401, 403, 503),
        tags=["usage"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return sums of the caller's usage, or of all usage for operators."""
        for name in request.GET:
            if name not in _PARAMETERS:
                raise InvalidRequest(f"{name[:80]!r} is not a parameter of this endpoint; remove it.", param=name[:80])
        form = request.GET.get("format", "json")
        if form not in ("json", "csv"):
            raise InvalidRequest(f"format is {form[:40]!r}, it must be json or csv.", param="format")
        limit = number_parameter(request, "limit", DEFAULT_ROWS, 1, MAX_ROWS)
        offset = number_parameter(request, "offset", 0, 0, 10**9)
        question = await sync_to_async(self._question)(request)
        if form == "csv":
            if "limit" in request.GET or "offset" in request.GET:
                raise InvalidRequest("limit and offset don't go with format=csv, which has all rows.", param="format")
            headers = {"Content-Disposition": f'attachment; filename="usage-{question.first}-{question.last}.csv"'}
            return StreamingHttpResponse(_file(question), content_type="text/csv; charset=utf-8", headers=headers)
        rows = await sync_to_async(usage_objects)(question, offset=offset, limit=limit + 1)
        payload = {
            "object": "list",
            "first_day": question.first.isoformat(),
            "last_day": question.last.isoformat(),
            "data": rows[:limit],
            "has_more": len(rows) > limit,
        }
        return json_response(payload)

    def _question(self, request: HttpRequest) -> UsageQuery:
        key, model = request.GET.get("key"), request.GET.get("model")
        tenant = None if key is None else tenant_of_key(key)
        if not self.principal.sees_everything:
            if tenant is not None and tenant != self.principal.tenant:
                raise PermissionRefused("The usage of other keys needs an API key with the scope 'admin'.")
            tenant = self.principal.tenant
        if model is not None and "\0" in model:
            raise InvalidRequest("model must not hold U+0000.", param="model")
        return usage_query(
            first=request.GET.get("from"),
            last=request.GET.get("to"),
            group_by=request.GET.get("group_by"),
            tenant=tenant,
            model=model,
        )


async def _file(question: UsageQuery) -> AsyncIterator[bytes]:
    chunks = csv_chunks(question)

    def following() -> str | None:
        return next(chunks, None)

    while (chunk := await sync_to_async(following)()) is not None:
        yield chunk.encode()
