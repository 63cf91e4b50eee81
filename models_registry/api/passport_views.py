"""Serve passports to the registry's pages: make one, follow it, cancel it; say which aliases demand one."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, cast

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from models_registry import passports, selectors
from models_registry.aliases import alias_demand
from models_registry.api.views import CHANGE, UPLOAD, VIEW, StaffView, valid_values
from models_registry.models import Checkpoint, ModelAlias, Passport
from models_registry.passport_gaps import passport_gap, passport_identity, passport_list
from models_registry.passports import PASSPORTS
from models_registry.server_choices import server_choices

_schema = partial(extend_schema, tags=["passports"])


class PassportEntrySerializer(serializers.Serializer[Any]):
    """A check of a passport."""

    name = serializers.CharField()
    state = serializers.CharField(help_text="passed, failed or skipped.")
    words = serializers.CharField()
    figures = serializers.DictField(child=serializers.FloatField())


class PassportSerializer(serializers.ModelSerializer[Passport]):
    """State of a passport; ``entries`` are there when it is done."""

    state = serializers.CharField(read_only=True, help_text=f"{', '.join(Passport.State.values)}.")
    entries = PassportEntrySerializer(source="shown_entries", many=True, read_only=True)

    class Meta:
        model = Passport
        fields = (
            "id", "source", "source_name", "state", "progress", "stage", "reason", "is_automatic", "entries",
            "created_at", "active_at",
        )  # fmt: skip


class AliasDemandSerializer(serializers.Serializer[Any]):
    """What an alias demands of a checkpoint that is promoted to it."""

    demands_passport = serializers.BooleanField()


class PromotableAliasSerializer(serializers.ModelSerializer[ModelAlias]):
    """An alias, and what it demands."""

    class Meta:
        model = ModelAlias
        fields = ("name", "demands_passport")


def passport_context(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint's passports and aliases for its page."""
    rows = passport_list(checkpoint)
    newest = next((row for row in rows if row.state == Passport.State.DONE), None)
    return {
        "passport": newest,
        "is_current": newest is not None and newest.identity == passport_identity(checkpoint),
        "last": rows[0] if rows and rows[0] != newest else None,
        "gap": passport_gap(checkpoint),
        "makes_passports": server_choices().makes_passports,
        "aliases": list(ModelAlias.objects.filter(current__checkpoint=checkpoint, current__adapter_name="")),
    }


class PassportListView(StaffView):
    """Passports of a checkpoint."""

    permissions = {"GET": VIEW, "POST": UPLOAD}

    @_schema(operation_id="passport_list", responses=PassportSerializer(many=True))
    def get(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Return the passports of a checkpoint, newest first."""
        rows = passport_list(selectors.checkpoint_get(checkpoint_id))
        return Response(PassportSerializer(rows, many=True).data)

    @_schema(operation_id="passport_create", request=None, responses={201: PassportSerializer})
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Start the checks and measurements of a passport; poll it for its progress."""
        row = passports.passport_create(
            checkpoint=selectors.checkpoint_get(checkpoint_id), owner=cast("Any", request.user)
        )
        return Response(PassportSerializer(row).data, status=201)


class PassportView(StaffView):
    """One passport."""

    permissions = {"GET": VIEW}

    @_schema(operation_id="passport_retrieve", responses=PassportSerializer)
    def get(self, request: Request, passport_id: uuid.UUID) -> Response:
        """Return the state of a passport, and its entries."""
        return Response(PassportSerializer(PASSPORTS.get(passport_id)).data)


class PassportCancelView(StaffView):
    """The end of a passport that is being made."""

    permissions = {"POST": UPLOAD}

    @_schema(operation_id="passport_cancel", request=None, responses=PassportSerializer)
    def post(self, request: Request, passport_id: uuid.UUID) -> Response:
        """Cancel a passport and end its process; one that has ended stays as it is."""
        return Response(PassportSerializer(PASSPORTS.cancel(passport_id, request.user.get_username())).data)


class AliasView(StaffView):
    """One alias."""

    permissions = {"PATCH": CHANGE}

    @_schema(operation_id="alias_demand", request=AliasDemandSerializer, responses=PromotableAliasSerializer)
    def patch(self, request: Request, alias: str) -> Response:
        """Set whether an alias takes only checkpoints with a passport."""
        values = valid_values(AliasDemandSerializer(data=request.data))
        row = alias_demand(name=alias, demands_passport=values["demands_passport"])
        return Response(PromotableAliasSerializer(row).data)
