"""Serve a checkpoint's LoRA adapters to the registry's pages: list, register by path, load, unload, remove."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from inference.values.states import ResidentAdapter
from models_registry import adapter_loading, adapters, live, selectors
from models_registry.adapter_names import MAX_ADAPTER_CHARS, full_name
from models_registry.api.keys import check_key_model
from models_registry.api.views import DELETE, LOAD, UPLOAD, VIEW, AdminKeyView, valid_values
from models_registry.models import Adapter, Checkpoint

_schema = partial(extend_schema, tags=["adapters"])


class AdapterSerializer(serializers.ModelSerializer[Adapter]):
    """A LoRA adapter of a checkpoint; ``context`` has ``resident``, those in memory by id (None: it isn't known)."""

    model = serializers.SerializerMethodField(help_text="What requests call it: BASE:NAME.")
    kind = serializers.CharField(read_only=True, help_text=f"{', '.join(Adapter.Kind.values)}.")
    targets = serializers.ListField(child=serializers.CharField(), help_text="Last parts of the changed modules.")
    state = serializers.CharField(read_only=True, help_text=f"{', '.join(Adapter.State.values)}.")
    owner = serializers.SerializerMethodField(help_text="Who registered it; empty: the account is gone.")

    pinned = serializers.BooleanField(
        source="is_pinned", read_only=True, help_text="Whether it was loaded ahead of its requests, to stay in memory."
    )
    resident = serializers.SerializerMethodField(
        help_text="Whether it is in memory; null: the workers can't be reached."
    )
    memory_bytes = serializers.SerializerMethodField(help_text="Of the workers that have it in memory, together.")
    num_requests = serializers.SerializerMethodField(help_text="Running requests that go through it.")
    last_used_at = serializers.SerializerMethodField(help_text="When something named it last; null: not in memory.")

    class Meta:
        model = Adapter
        fields = (
            "id", "name", "model", "kind", "path", "digest", "rank", "targets", "size_bytes", "state", "owner",
            "created_at", "pinned", "resident", "memory_bytes", "num_requests", "last_used_at",
        )  # fmt: skip

    def get_model(self, row: Adapter) -> str:
        """Return the name for requests."""
        return full_name(row.base.served_model_name, row.name)

    def get_owner(self, row: Adapter) -> str:
        """Return the owner's name."""
        return "" if row.owner is None else str(row.owner.get_username())

    def get_resident(self, row: Adapter) -> bool | None:
        """Return whether it is in memory."""
        return None if self.context["resident"] is None else self._found(row) is not None

    def get_memory_bytes(self, row: Adapter) -> int:
        """Return the memory that it takes."""
        found = self._found(row)
        return 0 if found is None else found.memory_bytes

    def get_num_requests(self, row: Adapter) -> int:
        """Return the number of its running requests."""
        found = self._found(row)
        return 0 if found is None else found.num_requests

    def get_last_used_at(self, row: Adapter) -> datetime | None:
        """Return the moment of its last use."""
        found = self._found(row)
        return None if found is None else datetime.fromtimestamp(found.last_used_at, UTC)

    def _found(self, row: Adapter) -> ResidentAdapter | None:
        resident: dict[str, ResidentAdapter] = self.context["resident"] or {}
        return resident.get(str(row.pk))


def adapter_values(rows: Sequence[Adapter]) -> list[dict[str, Any]]:
    """Return adapters as the API shows them, with what the workers say of them."""
    return list(AdapterSerializer(rows, many=True, context={"resident": live.look().adapters()}).data)


def _with_reply(row: Adapter, found: ResidentAdapter | None) -> dict[str, Any]:
    """Return an adapter as the workers that carried out an order for it have it."""
    return dict(AdapterSerializer(row, context={"resident": {} if found is None else {str(row.pk): found}}).data)


class AdapterCreateSerializer(serializers.Serializer[Any]):
    """A registration of an adapter."""

    path = serializers.CharField(
        max_length=adapters.MAX_PATH_CHARS,
        help_text="Directory of a LoRA or an X-LoRA, or PEFT's safetensors file; the server's settings must name it or "
        "a directory above it.",
    )
    name = serializers.CharField(
        max_length=MAX_ADAPTER_CHARS, required=False, help_text="Default: the last component of path."
    )


def _checkpoint(request: Request, checkpoint_id: uuid.UUID) -> Checkpoint:
    """Return a checkpoint that the caller's key, if there is one, is for."""
    found = selectors.checkpoint_get(checkpoint_id)
    check_key_model(request.user, found.served_model_name)
    return found


class AdapterListView(AdminKeyView):
    """Adapters of a checkpoint."""

    permissions = {"GET": VIEW, "POST": UPLOAD}

    @_schema(operation_id="adapter_list", responses=AdapterSerializer(many=True))
    def get(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return the adapters of a checkpoint by name."""
        rows = adapters.adapter_list(_checkpoint(request, checkpoint_id))
        return Response(adapter_values(rows))

    @_schema(operation_id="adapter_create", request=AdapterCreateSerializer, responses={201: AdapterSerializer})
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Register an adapter by path, after a check of its files against the checkpoint."""
        checkpoint = _checkpoint(request, checkpoint_id)
        values = valid_values(AdapterCreateSerializer(data=request.data))
        row = adapters.adapter_register(checkpoint=checkpoint, owner=cast("Any", request.user), **values)
        return Response(adapter_values([row])[0], status=201)


class AdapterView(AdminKeyView):
    """One adapter."""

    permissions = {"DELETE": DELETE}

    @_schema(operation_id="adapter_delete", responses={204: None})
    def delete(self, request: Request, checkpoint_id: uuid.UUID, adapter_id: uuid.UUID) -> Response:
        """Remove an adapter from the registry and the workers; its files stay, and running requests end as they are."""
        adapters.adapter_remove(checkpoint=_checkpoint(request, checkpoint_id), adapter_id=adapter_id)
        return Response(status=204)


class AdapterLoadView(AdminKeyView):
    """Loads one adapter."""

    permissions = {"POST": LOAD}

    @_schema(
        operation_id="adapter_load",
        request=None,
        responses={
            200: AdapterSerializer,
            202: OpenApiResponse(AdapterSerializer, "Its base isn't loaded, and it comes with the base."),
        },
    )
    def post(self, request: Request, checkpoint_id: uuid.UUID, adapter_id: uuid.UUID) -> Response:
        """Load an adapter ahead of its requests, and with each load of its base; it stays until it is unloaded."""
        checkpoint = _checkpoint(request, checkpoint_id)
        row, found = adapter_loading.adapter_load(checkpoint=checkpoint, adapter_id=adapter_id)
        return Response(_with_reply(row, found), status=202 if found is None else 200)


class AdapterUnloadView(AdminKeyView):
    """Unloads one adapter."""

    permissions = {"POST": LOAD}

    @_schema(
        operation_id="adapter_unload",
        request=None,
        responses={
            200: AdapterSerializer,
            202: OpenApiResponse(
                AdapterSerializer,
                "It leaves the memory after num_requests running requests; 0: another name of the same files keeps it.",
            ),
        },
    )
    def post(self, request: Request, checkpoint_id: uuid.UUID, adapter_id: uuid.UUID) -> Response:
        """Let an adapter leave the memory, after the requests that go through it; the next one loads it again."""
        checkpoint = _checkpoint(request, checkpoint_id)
        row, found = adapter_loading.adapter_unload(checkpoint=checkpoint, adapter_id=adapter_id)
        return Response(_with_reply(row, found), status=200 if found is None else 202)
