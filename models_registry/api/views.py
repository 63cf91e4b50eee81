"""Serve the registry's JSON API, for sessions of accounts with the permission of each method.

Unsafe methods of a session need a CSRF token. Uploads and adapters take API keys as well (``api.keys``).

A view reads the request, calls a service, and serializes the result. Errors have OpenAI's shape.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn, cast

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.parsers import FileUploadParser, JSONParser
from rest_framework.permissions import IsAdminUser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from inference.errors import InvalidRequest, NotAuthenticated
from inference.models import GenerationJob
from inference.models.readable_rows import readable_rows
from models_registry import live, selectors, services, uploads
from models_registry.api import serializers as shapes
from models_registry.api.keys import AdminKeyAuthentication, KeyUser, allowed_by_key, check_key_model
from models_registry.detection.describe import describe
from models_registry.detection.inspection import Inspection
from models_registry.models import Checkpoint
from models_registry.names import suggest_name
from models_registry.tensor_index import tensor_page
from models_registry.tokenizer_sources import check_vocabulary
from models_registry.upload_pieces import stated_digest
from models_registry.upload_preview import upload_compare, upload_preview
from models_registry.upload_rules import DeclaredFile

MAX_PAGE = 500
_CACHED_INSPECTIONS = 8


VIEW, CHANGE, DELETE = (f"models_registry.{action}_checkpoint" for action in ("view", "change", "delete"))
LOAD, UPLOAD = "models_registry.load_checkpoint", "models_registry.add_upload"

_registry_schema = partial(extend_schema, tags=["registry"])
_detail_schema = partial(_registry_schema, responses=shapes.CheckpointDetailSerializer)
_upload_schema = partial(extend_schema, tags=["uploads"])


class HasPermission(IsAdminUser):
    """Allows staff with the permission that the view names for the method; a method without one is refused."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether the session's account may call this method of the view."""
        needed = cast("StaffView", view).permissions.get(request.method or "")
        return super().has_permission(request, view) and needed is not None and request.user.has_perm(needed)


class StaffView(APIView):
    """Base of the views.

    Attributes:
        permissions: The permission that each method needs.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] = (SessionAuthentication,)
    permission_classes = (HasPermission,)
    permissions: ClassVar[Mapping[str, str]] = {}

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn:
        """Refuse a caller; one that isn't signed in learns that a key doesn't help here."""
        if not request.user.is_authenticated:
            raise NotAuthenticated("The registry takes accounts and no API keys; sign in at /login/.")
        super().permission_denied(request, message, code)


class AdminKeyView(StaffView):
    """Base of the views of uploads and adapters, which take API keys with the scope ``admin``, too."""

    authentication_classes = (AdminKeyAuthentication, SessionAuthentication)

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn:
        """Refuse a caller; one that isn't signed in learns what helps."""
        if not request.user.is_authenticated:
            raise NotAuthenticated(
                "This needs an account or an API key with the scope admin: sign in at /login/, or make a key with "
                "blazr key create NAME --scope admin."
            )
        super().permission_denied(request, message, code)


def valid_values(serializer: BaseSerializer[Any]) -> dict[str, Any]:
    """Return the values of a body; a wrong one raises the framework's error."""
    serializer.is_valid(raise_exception=True)
    return cast("dict[str, Any]", serializer.validated_data)


@lru_cache(maxsize=_CACHED_INSPECTIONS)
def _inspection(checkpoint_id: uuid.UUID, version: str) -> Inspection:
    """Decode an inspection once per version of the row, because it may have megabytes of JSON."""
    return selectors.checkpoint_inspection(selectors.checkpoint_get(checkpoint_id))


def checkpoint_inspection(checkpoint: Checkpoint) -> Inspection:
    """Return the stored inspection, cached in this process."""
    return _inspection(checkpoint.pk, checkpoint.updated_at.isoformat())


def _with_live(checkpoint: Checkpoint) -> dict[str, Any]:
    (row,) = live.with_live([checkpoint], live.look())
    return shapes.CheckpointSerializer(row).data


def checkpoint_detail(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the full description of a checkpoint, for its page and for the API."""
    detail = _with_live(checkpoint)
    detail["description"] = describe(checkpoint_inspection(checkpoint))
    detail["overrides"] = shapes.OverrideSerializer(
        readable_rows(selectors.override_history(checkpoint)), many=True
    ).data
    return detail


class OverviewView(StaffView):
    """The values of the dashboard."""

    permissions = {"GET": VIEW}

    @_registry_schema(operation_id="registry_overview", responses=shapes.OverviewSerializer)
    def get(self, request: Request) -> Response:
        """Return checkpoints with their live state, workers, queued jobs."""
        return Response(overview())


def overview() -> dict[str, Any]:
    """Return the values of the dashboard."""
    seen = live.look()
    rows = live.with_live(readable_rows(selectors.checkpoint_list()), seen)
    return {
        "checkpoints": shapes.CheckpointSerializer(rows, many=True).data,
        "workers": seen.worker_rows(rows),
        "jobs": GenerationJob.objects.count_by_state(),
        "notice": seen.notice,
    }


class CheckpointListView(AdminKeyView):
    """All checkpoints."""

    permissions = {"GET": VIEW}

    @_registry_schema(operation_id="checkpoint_list", responses=shapes.CheckpointSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Return all checkpoints by name, with their live state."""
        rows = allowed_by_key(request.user, readable_rows(selectors.checkpoint_list()))
        rows = live.with_live(rows, live.look())
        return Response(shapes.CheckpointSerializer(rows, many=True).data)


class CheckpointView(StaffView):
    """One checkpoint."""

    permissions = {"GET": VIEW, "PATCH": CHANGE, "DELETE": DELETE}

    @_detail_schema(operation_id="checkpoint_retrieve")
    def get(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return a checkpoint with facts, layers, warnings and overrides."""
        return Response(checkpoint_detail(selectors.checkpoint_get(checkpoint_id)))

    @_detail_schema(operation_id="checkpoint_rename", request=shapes.CheckpointRenameSerializer)
    def patch(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Rename a checkpoint."""
        values = valid_values(shapes.CheckpointRenameSerializer(data=request.data))
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        services.checkpoint_rename(checkpoint=checkpoint, served_model_name=values["served_model_name"])
        return Response(checkpoint_detail(checkpoint))

    @_registry_schema(operation_id="checkpoint_delete", responses={204: None})
    def delete(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Unload and delete a checkpoint; uploaded files are removed, files registered by path are kept."""
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        services.checkpoint_check_unused(checkpoint)
        live.unload_before_delete(checkpoint)
        services.checkpoint_delete(checkpoint=checkpoint)
        return Response(status=204)


class CheckpointRefreshView(StaffView):
    """Inspect again."""

    permissions = {"POST": CHANGE}

    @_detail_schema(operation_id="checkpoint_refresh", request=None)
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Inspect the files again."""
        checkpoint = services.checkpoint_refresh(checkpoint=selectors.checkpoint_get(checkpoint_id))
        return Response(checkpoint_detail(checkpoint))


class CheckpointTensorsView(StaffView):
    """The tensor table; the server searches and pages, because a large model has 100,000 tensors."""

    permissions = {"GET": VIEW}

    @_registry_schema(
        operation_id="checkpoint_tensors",
        parameters=[
            OpenApiParameter("search", str, description="Words that the name, dtype or shape must contain."),
            OpenApiParameter("offset", int),
            OpenApiParameter("limit", int, description=f"At most {MAX_PAGE}."),
        ],
        responses=shapes.TensorPageSerializer,
    )
    def get(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return a page of the matching tensors."""
        page = tensor_page(
            checkpoint_id,
            request.query_params.get("search", ""),
            offset=_page_number(request, "offset", 0, 0, 1 << 31),
            limit=_page_number(request, "limit", 50, 1, MAX_PAGE),
        )
        return Response({"count": page.count, "offset": page.offset, "tensors": page.rows})


def _page_number(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and low <= int(text) <= high):
        raise InvalidRequest(f"{name} is {text[:40]!r}; it must be from {low} to {high}.", param=name)
    return int(text)


class OverrideListView(StaffView):
    """Facts that people set."""

    permissions = {"POST": CHANGE}

    @_detail_schema(operation_id="checkpoint_override_set", request=shapes.OverrideSetSerializer)
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Set one fact and inspect again with it."""
        values = valid_values(shapes.OverrideSetSerializer(data=request.data))
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        check_vocabulary(Path(checkpoint.path), {values["fact"]: values["value"]})
        checkpoint = services.checkpoint_override_set(
            checkpoint=checkpoint,
            fact=values["fact"],
            value=values["value"],
            author=cast("Any", request.user),
        )
        return Response(checkpoint_detail(checkpoint))


class OverrideView(StaffView):
    """One overridden fact."""

    permissions = {"DELETE": CHANGE}

    @_detail_schema(operation_id="checkpoint_override_clear")
    def delete(self, request: Request, checkpoint_id: uuid.UUID, fact: str) -> Response:
        """Clear an override, which restores the detected value."""
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        services.checkpoint_override_clear(checkpoint=checkpoint, fact=fact)
        return Response(checkpoint_detail(checkpoint))


class SettingsView(StaffView):
    """A model's settings."""

    permissions = {"PATCH": CHANGE}

    @_detail_schema(operation_id="checkpoint_settings_update", request=shapes.SettingsSerializer)
    def patch(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Change some settings; they apply from the next load on."""
        values = valid_values(shapes.SettingsSerializer(data=request.data))
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        services.checkpoint_settings_update(checkpoint=checkpoint, values=values["settings"])
        return Response(checkpoint_detail(checkpoint))


class FitView(StaffView):
    """Whether a checkpoint fits on the workers."""

    permissions = {"GET": VIEW}

    @_registry_schema(operation_id="checkpoint_fit", responses=shapes.FitSerializer)
    def get(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return weights, states and budget per worker, without loading."""
        return Response(shapes.FitSerializer(live.fit(selectors.checkpoint_get(checkpoint_id))).data)


class LoadView(StaffView):
    """Loads of a checkpoint."""

    permissions = {"POST": LOAD}

    @_registry_schema(operation_id="checkpoint_load", request=None, responses={202: shapes.CheckpointSerializer})
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Request a worker to load the checkpoint; the live state shows the progress."""
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        live.load(checkpoint)
        return Response(_with_live(checkpoint), status=202)


class UnloadView(StaffView):
    """Unloads of a checkpoint."""

    permissions = {"POST": LOAD}

    @_registry_schema(operation_id="checkpoint_unload", request=None, responses={202: shapes.CheckpointSerializer})
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Request the workers to unload the checkpoint."""
        checkpoint = selectors.checkpoint_get(checkpoint_id)
        live.unload(checkpoint)
        return Response(_with_live(checkpoint), status=202)


class UploadListView(AdminKeyView):
    """Uploads."""

    permissions = {"POST": UPLOAD}

    @_upload_schema(
        operation_id="upload_create", request=shapes.UploadCreateSerializer, responses={201: shapes.UploadSerializer}
    )
    def post(self, request: Request) -> Response:
        """Create an upload from names and sizes, after all checks that need no bytes."""
        values = valid_values(shapes.UploadCreateSerializer(data=request.data))
        files = [DeclaredFile(**file) for file in values["files"]]
        overrides = values.get("overrides")
        check_vocabulary(None, overrides if isinstance(overrides, Mapping) else {})
        name = values["served_model_name"] or services.free_name(suggest_name(values["label"]))
        check_key_model(request.user, name)
        upload = uploads.upload_create(
            owner=None if isinstance(request.user, KeyUser) else cast("Any", request.user),
            served_model_name=name,
            files=files,
            overrides=overrides,
        )
        return Response(shapes.UploadSerializer(upload).data, status=201)


class OneUploadView(AdminKeyView):
    """Base of the views of one upload."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse a key that isn't for the upload's model."""
        super().initial(request, *args, **kwargs)
        if isinstance(request.user, KeyUser) and request.user.principal.models is not None:
            check_key_model(request.user, uploads.upload_get(kwargs["upload_id"]).served_model_name)


class UploadView(OneUploadView):
    """One upload."""

    permissions = {"GET": UPLOAD, "DELETE": UPLOAD}

    @_upload_schema(operation_id="upload_retrieve", responses=shapes.UploadSerializer)
    def get(self, request: Request, upload_id: uuid.UUID) -> Response:
        """Return the state of an upload, and the offset at which each file continues."""
        return Response(shapes.UploadSerializer(uploads.upload_get(upload_id)).data)

    @_upload_schema(operation_id="upload_cancel", responses=shapes.UploadSerializer)
    def delete(self, request: Request, upload_id: uuid.UUID) -> Response:
        """Cancel an upload and remove the received bytes."""
        return Response(shapes.UploadSerializer(uploads.upload_cancel(upload_id=upload_id)).data)


class UploadPieceView(OneUploadView):
    """The bytes of one file; the body is not parsed."""

    permissions = {"PUT": UPLOAD}
    parser_classes = (FileUploadParser,)

    @_upload_schema(
        operation_id="upload_receive",
        parameters=[
            OpenApiParameter("offset", int, required=True, description="What the server has of the file."),
            OpenApiParameter("compare", int, description="1: compare with what was received; nothing is stored."),
            OpenApiParameter(
                "Content-Digest",
                str,
                OpenApiParameter.HEADER,
                description="sha-256=:BASE64: of the piece (RFC 9530); one that changed on its way is refused.",
            ),
        ],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=shapes.UploadFileSerializer,
    )
    def put(self, request: Request, upload_id: uuid.UUID, number: int) -> Response:
        """Append the next piece, at most ``chunk_bytes``."""
        offset = _page_number(request, "offset", 0, 0, 1 << 50)
        is_compared = _page_number(request, "compare", 0, 0, 1) == 1
        digest = stated_digest(request.headers.get("Content-Digest", ""))
        receive = upload_compare if is_compared else partial(uploads.upload_receive, digest=digest)
        file = receive(upload_id=upload_id, number=number, offset=offset, body=cast("IO[bytes]", request._request))
        return Response(shapes.UploadFileSerializer(file).data)


class UploadPreviewView(StaffView):
    """What an upload is, from its small files and the heads of its weights."""

    permissions = {"POST": UPLOAD}
    parser_classes = (JSONParser,)

    @_upload_schema(operation_id="upload_preview", request=None, responses=shapes.UploadPreviewSerializer)
    def post(self, request: Request, upload_id: uuid.UUID) -> Response:
        """Inspect what has arrived; a model that would be refused at the end is refused now."""
        return Response(shapes.UploadPreviewSerializer(upload_preview(upload_id=upload_id)).data)


class UploadFinishView(OneUploadView):
    """The end of an upload."""

    permissions = {"POST": UPLOAD}
    parser_classes = (JSONParser,)

    @_upload_schema(
        operation_id="upload_finish", request=shapes.UploadFinishSerializer, responses={202: shapes.UploadSerializer}
    )
    def post(self, request: Request, upload_id: uuid.UUID) -> Response:
        """Verify, inspect and register; poll the upload for the outcome. One whose name is taken keeps its bytes."""
        values = valid_values(shapes.UploadFinishSerializer(data=request.data))
        if values["served_model_name"]:
            check_key_model(request.user, values["served_model_name"])
        upload = uploads.upload_finish(upload_id=upload_id, served_model_name=values["served_model_name"])
        return Response(shapes.UploadSerializer(upload).data, status=202)
