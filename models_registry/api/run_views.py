"""Serve training runs to the registry's pages: watch a directory, follow it, stop, forget; promote a checkpoint."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any, cast

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from models_registry import live, selectors
from models_registry.adapters import adapter_get
from models_registry.aliases import alias_promote
from models_registry.api import run_serializers as shapes
from models_registry.api.views import CHANGE, DELETE, UPLOAD, VIEW, StaffView, valid_values
from models_registry.models import TrainingRun
from models_registry.runs import services
from models_registry.runs.measuring import STEP_MEASUREMENTS

_schema = partial(extend_schema, tags=["training runs"])
_detail_schema = partial(_schema, responses=shapes.RunDetailSerializer)


def run_detail(run: TrainingRun) -> dict[str, Any]:
    """Return a run with its checkpoints, for its page and for the API."""
    shown: Any = {
        **shapes.RunSerializer(run).data,
        "steps": shapes.RunStepSerializer(services.run_steps(run), many=True).data,
        **_measurement(run),
    }
    return cast("dict[str, Any]", shown)


def run_state(run: TrainingRun) -> dict[str, Any]:
    """Return what says whether a run has changed, for its page, which asks often."""
    return {"version": services.run_version(run), **_measurement(run)}


def _measurement(run: TrainingRun) -> dict[str, Any]:
    rows = STEP_MEASUREMENTS.rows().filter(state="running", step__run=run)
    name, progress = rows.values_list("step__name", "progress").first() or ("", 0.0)
    return {"measuring": name, "progress": progress}


class RunListView(StaffView):
    """Training runs."""

    permissions = {"GET": VIEW, "POST": UPLOAD}

    @_schema(operation_id="run_list", responses=shapes.RunSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Return all runs, newest first."""
        return Response(shapes.RunSerializer(services.run_list(), many=True).data)

    @_schema(
        operation_id="run_create",
        request=shapes.RunCreateSerializer,
        responses={201: shapes.RunDetailSerializer},
    )
    def post(self, request: Request) -> Response:
        """Watch a directory that the server's settings allow; its complete checkpoints are registered."""
        values = valid_values(shapes.RunCreateSerializer(data=request.data))
        return Response(run_detail(services.run_create(owner=cast("Any", request.user), **values)), status=201)


class RunView(StaffView):
    """One training run."""

    permissions = {"GET": VIEW, "PATCH": UPLOAD, "DELETE": DELETE}

    @_detail_schema(operation_id="run_retrieve")
    def get(self, request: Request, run_id: uuid.UUID) -> Response:
        """Return a run with its checkpoints in the order of training."""
        return Response(run_detail(services.run_get(run_id)))

    @_detail_schema(operation_id="run_update", request=shapes.RunOptionsSerializer)
    def patch(self, request: Request, run_id: uuid.UUID) -> Response:
        """Change how checkpoints are measured from now on."""
        values = valid_values(shapes.RunOptionsSerializer(data=request.data))
        run = services.run_get(run_id)
        services.run_update(run, **values)
        return Response(run_detail(run))

    @_schema(operation_id="run_delete", request=shapes.RunDeleteSerializer, responses={204: None})
    def delete(self, request: Request, run_id: uuid.UUID) -> Response:
        """Forget a run, and perhaps its checkpoints; the trainer's files stay."""
        with_models = valid_values(shapes.RunDeleteSerializer(data=request.data))["with_models"]
        run = services.run_get(run_id)
        for checkpoint in services.run_models(run) if with_models else ():
            live.unload_before_delete(checkpoint)
        services.run_delete(run, with_models=with_models)
        return Response(status=204)


class RunStateView(StaffView):
    """Whether a training run has changed."""

    permissions = {"GET": VIEW}

    @_schema(operation_id="run_state", responses=shapes.RunStateSerializer)
    def get(self, request: Request, run_id: uuid.UUID) -> Response:
        """Return a version that changes with the run and its checkpoints, and how far a measurement is."""
        return Response(run_state(services.run_get(run_id)))


class RunStopView(StaffView):
    """The end of watching."""

    permissions = {"POST": UPLOAD}

    @_detail_schema(operation_id="run_stop", request=None)
    def post(self, request: Request, run_id: uuid.UUID) -> Response:
        """Look at the directory no more; registered checkpoints stay."""
        run = services.run_get(run_id)
        services.run_stop(run, request.user.get_username())
        return Response(run_detail(run))


class RunResumeView(StaffView):
    """Watching again."""

    permissions = {"POST": UPLOAD}

    @_detail_schema(operation_id="run_resume", request=None)
    def post(self, request: Request, run_id: uuid.UUID) -> Response:
        """Look at the directory again, and measure what could not be measured before."""
        run = services.run_get(run_id)
        services.run_resume(run)
        return Response(run_detail(run))


class PromoteView(StaffView):
    """What an alias means."""

    permissions = {"POST": CHANGE}

    @_schema(
        operation_id="checkpoint_promote",
        request=shapes.PromoteSerializer,
        responses={201: shapes.PromotedSerializer},
    )
    def post(self, request: Request, checkpoint_id: uuid.UUID) -> Response:
        """Point an alias to this checkpoint or to an adapter of it; the alias is made if there is none."""
        values = valid_values(shapes.PromoteSerializer(data=request.data))
        checkpoint, adapter_id = selectors.checkpoint_get(checkpoint_id), values.get("adapter")
        revision = alias_promote(
            name=values["alias"],
            checkpoint=checkpoint,
            adapter=None if adapter_id is None else adapter_get(checkpoint=checkpoint, adapter_id=adapter_id),
            author_name=request.user.get_username(),
        )
        return Response(shapes.PromotedSerializer(revision).data, status=201)
