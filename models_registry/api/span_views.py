"""Serve measurements of a checkpoint's memory to the registry's pages: start, follow, cancel, download, delete."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, cast

from django.db.models import Value
from django.db.models.functions import Left
from django.http import HttpResponse
from django.utils.http import content_disposition_header
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from inference.errors import NotFound
from inference.models.readable_rows import readable_rows
from models_registry import selectors, span_measurements
from models_registry.api import serializers as shapes
from models_registry.api.views import UPLOAD, VIEW, StaffView, valid_values
from models_registry.models import Checkpoint, SpanMeasurement
from models_registry.span_measurements import SPAN_MEASUREMENTS

EXCERPT_CHARS = 160

_schema = partial(extend_schema, tags=["span measurements"])


def measurement_rows(checkpoint: Checkpoint) -> list[SpanMeasurement]:
    """Return the measurements of a checkpoint, newest first, without what is long."""
    rows = SPAN_MEASUREMENTS.of(checkpoint).annotate(excerpt=Left("text", Value(EXCERPT_CHARS)))
    return readable_rows(rows.defer("text", "figures", "picture"))


def _row(measurement_id: uuid.UUID) -> Any:
    return shapes.SpanMeasurementSerializer(SPAN_MEASUREMENTS.get(measurement_id)).data


class SpanMeasurementListView(StaffView):
    """Measurements of a checkpoint."""

    permissions = {"GET": VIEW, "POST": UPLOAD}

    @_schema(operation_id="span_measurement_list", responses=shapes.SpanMeasurementSerializer(many=True))
    def get(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return the measurements of a checkpoint, newest first."""
        rows = measurement_rows(selectors.checkpoint_get(checkpoint_id))
        return Response(shapes.SpanMeasurementSerializer(rows, many=True).data)

    @_schema(
        operation_id="span_measurement_create",
        request=shapes.SpanMeasurementCreateSerializer,
        responses={201: shapes.SpanMeasurementSerializer},
    )
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Read a text once within a number of tokens and seconds; poll the measurement for its progress."""
        values = valid_values(shapes.SpanMeasurementCreateSerializer(data=request.data))
        row = span_measurements.span_measurement_create(
            checkpoint=selectors.checkpoint_get(checkpoint_id), owner=cast("Any", request.user), **values
        )
        return Response(shapes.SpanMeasurementSerializer(row).data, status=201)


class SpanMeasurementView(StaffView):
    """One measurement."""

    permissions = {"GET": VIEW, "DELETE": UPLOAD}

    @_schema(operation_id="span_measurement_retrieve", responses=shapes.SpanMeasurementSerializer)
    def get(self, request: Request, measurement_id: uuid.UUID) -> Response:
        """Return the state of a measurement, and its table."""
        return Response(_row(measurement_id))

    @_schema(operation_id="span_measurement_delete", responses={204: None})
    def delete(self, request: Request, measurement_id: uuid.UUID) -> Response:
        """Delete a measurement that has ended, with its text and its result."""
        span_measurements.span_measurement_delete(measurement_id)
        return Response(status=204)


class SpanMeasurementCancelView(StaffView):
    """The end of a running measurement."""

    permissions = {"POST": UPLOAD}

    @_schema(operation_id="span_measurement_cancel", request=None, responses=shapes.SpanMeasurementSerializer)
    def post(self, request: Request, measurement_id: uuid.UUID) -> Response:
        """Cancel a measurement and end its process; one that has ended stays as it is."""
        SPAN_MEASUREMENTS.cancel(measurement_id, request.user.get_username())
        return Response(_row(measurement_id))


class SpanMeasurementFileView(StaffView):
    """A part of a measurement's result, as a file.

    Attributes:
        column: The row's column that holds it.
        media_type: Its type.
        suffix: Of the file's name.
    """

    permissions = {"GET": VIEW}
    column = media_type = suffix = ""

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """Serve the one type that there is, whatever the client accepts: errors are JSON as everywhere."""
        return super().perform_content_negotiation(request, force=True)

    def _file(self, measurement_id: uuid.UUID) -> HttpResponse:
        row = SPAN_MEASUREMENTS.get(measurement_id)
        content: str = getattr(row, self.column)
        if not content:
            raise NotFound(f"the measurement is {row.state} and has no result.", param="measurement")
        response = HttpResponse(content, content_type=self.media_type)
        # A picture that is opened by itself would be a page of this site; an image of a page takes no notice.
        name = f"{row.source_name}-memory{self.suffix}"
        response.headers["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
        response.headers["Cache-Control"] = "private, max-age=3600"
        return response


class SpanFiguresView(SpanMeasurementFileView):
    """All figures."""

    column = "figures"
    media_type = "application/json"
    suffix = ".json"

    @_schema(operation_id="span_measurement_figures", responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request, measurement_id: uuid.UUID) -> HttpResponse:
        """Return the figures of each mixer and head, as ``blazr inspect --json`` prints them."""
        return self._file(measurement_id)


class SpanPictureView(SpanMeasurementFileView):
    """The picture."""

    column = "picture"
    media_type = "image/svg+xml"
    suffix = ".svg"

    @_schema(operation_id="span_measurement_picture", responses={(200, "image/svg+xml"): OpenApiTypes.STR})
    def get(self, request: Request, measurement_id: uuid.UUID) -> HttpResponse:
        """Return the picture of ``blazr inspect --svg``."""
        return self._file(measurement_id)
