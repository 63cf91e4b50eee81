"""Serve a checkpoint's LoRA adapters to the registry's pages: list them, register one by path, remove one."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, cast

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from models_registry import adapters, selectors
from models_registry.adapter_names import MAX_ADAPTER_CHARS, full_name
from models_registry.api.keys import check_key_model
from models_registry.api.views import DELETE, UPLOAD, VIEW, AdminKeyView, valid_values
from models_registry.models import Adapter, Checkpoint

_schema = partial(extend_schema, tags=["adapters"])


class AdapterSerializer(serializers.ModelSerializer[Adapter]):
    """A LoRA adapter of a checkpoint."""

    model = serializers.SerializerMethodField(help_text="What requests call it: BASE:NAME.")
    kind = serializers.CharField(read_only=True, help_text=f"{', '.join(Adapter.Kind.values)}.")
    targets = serializers.ListField(child=serializers.CharField(), help_text="Last parts of the changed modules.")
    state = serializers.CharField(read_only=True, help_text=f"{', '.join(Adapter.State.values)}.")
    owner = serializers.SerializerMethodField(help_text="Who registered it; empty: the account is gone.")

    class Meta:
        model = Adapter
        fields = (
            "id", "name", "model", "kind", "path", "digest", "rank", "targets", "size_bytes", "state", "owner",
            "created_at",
        )  # fmt: skip

    def get_model(self, row: Adapter) -> str:
        """Return the name for requests."""
        return full_name(row.base.served_model_name, row.name)

    def get_owner(self, row: Adapter) -> str:
        """Return the owner's name."""
        return "" if row.owner is None else str(row.owner.get_username())


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
        return Response(AdapterSerializer(rows, many=True).data)

    @_schema(operation_id="adapter_create", request=AdapterCreateSerializer, responses={201: AdapterSerializer})
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Register an adapter by path, after a check of its files against the checkpoint."""
        checkpoint = _checkpoint(request, checkpoint_id)
        values = valid_values(AdapterCreateSerializer(data=request.data))
        row = adapters.adapter_register(checkpoint=checkpoint, owner=cast("Any", request.user), **values)
        return Response(AdapterSerializer(row).data, status=201)


class AdapterView(AdminKeyView):
    """One adapter."""

    permissions = {"DELETE": DELETE}

    @_schema(operation_id="adapter_delete", responses={204: None})
    def delete(self, request: Request, checkpoint_id: uuid.UUID, adapter_id: uuid.UUID) -> Response:
        """Remove an adapter from the registry and the workers; its files stay, and running requests end as they are."""
        adapters.adapter_remove(checkpoint=_checkpoint(request, checkpoint_id), adapter_id=adapter_id)
        return Response(status=204)
