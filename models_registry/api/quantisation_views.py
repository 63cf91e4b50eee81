"""Serve quantisations to the registry's pages: start, list, follow and cancel them."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, cast

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from models_registry import quantisations, selectors
from models_registry.api import serializers as shapes
from models_registry.api.views import UPLOAD, VIEW, StaffView, valid_values
from models_registry.models import Checkpoint

MAX_LISTED = 5

_schema = partial(extend_schema, tags=["quantisations"])


def quantisation_list(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the last quantisations of a checkpoint, newest first, for its page and for the API."""
    rows = quantisations.QUANTISATIONS.of(checkpoint)[:MAX_LISTED]
    return cast("list[dict[str, Any]]", shapes.QuantisationSerializer(rows, many=True).data)


class QuantisationListView(StaffView):
    """Quantisations of a checkpoint."""

    permissions = {"GET": VIEW, "POST": UPLOAD}

    @_schema(operation_id="quantisation_list", responses=shapes.QuantisationSerializer(many=True))
    def get(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return the last quantisations of a checkpoint, newest first."""
        return Response(quantisation_list(selectors.checkpoint_get(checkpoint_id)))

    @_schema(
        operation_id="quantisation_create",
        request=shapes.QuantisationCreateSerializer,
        responses={201: shapes.QuantisationSerializer},
    )
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Start a quantisation within a size, a divergence, or both; poll it for its progress."""
        values = valid_values(shapes.QuantisationCreateSerializer(data=request.data))
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        row = quantisations.quantisation_create(checkpoint=checkpoint, owner=cast("Any", request.user), **values)
        return Response(shapes.QuantisationSerializer(row).data, status=201)


class QuantisationView(StaffView):
    """One quantisation."""

    permissions = {"GET": VIEW, "DELETE": UPLOAD}

    @_schema(operation_id="quantisation_retrieve", responses=shapes.QuantisationSerializer)
    def get(self, request: Request, quantisation_id: uuid.UUID) -> Response:
        """Return the state of a quantisation."""
        return Response(shapes.QuantisationSerializer(quantisations.QUANTISATIONS.get(quantisation_id)).data)

    @_schema(operation_id="quantisation_cancel", responses=shapes.QuantisationSerializer)
    def delete(self, request: Request, quantisation_id: uuid.UUID) -> Response:
        """Cancel a quantisation and remove its unfinished files."""
        row = quantisations.quantisation_cancel(quantisation_id=quantisation_id, username=request.user.get_username())
        return Response(shapes.QuantisationSerializer(row).data)
