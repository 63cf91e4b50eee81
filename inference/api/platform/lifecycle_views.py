"""Load, unload, pin and describe models over HTTP; list and cancel running requests."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from inference.api.base import ApiView, json_body, json_response
from inference.api.platform.lifecycle_schemas import (
    ModelFitSerializer,
    ModelStatusSerializer,
    RequestCancelledSerializer,
    RunningRequestListSerializer,
)
from inference.api.schemas import documented
from inference.dialects.fields import StrictBooleanField
from inference.dialects.strict_serializer import StrictSerializer
from inference.errors import UnknownRequest
from inference.serving.running_requests import RunningRequest, merged_requests, request_cancel
from inference.serving.served_models import served_model_get
from inference.transport.control import request_unload, send_control
from inference.transport.questions import fits_somewhere, model_fit, running_requests
from inference.transport.queue import request_load
from inference.transport.worker_states import model_states, worker_states
from inference.values.principal import principal_current
from inference.values.served_model import ServedModel
from inference.values.states import ModelState, departures_of
from models_registry.selectors import checkpoint_get, checkpoint_list
from models_registry.services import checkpoint_settings_update

_ERRORS = (400, 401, 403, 404, 415, 503)


class PinRequestSerializer(StrictSerializer):
    """Body of POST /v1/models/{id}/pin."""

    pinned = StrictBooleanField(required=False, default=True, help_text="false: it may go again.")


# --- models ------------------------------------------------------------------------------------


class ModelStatusView(ApiView):
    """GET /v1/models/{id}/status."""

    @documented(
        operation_id="models_status",
        summary="What a model is doing",
        responses={200: ModelStatusSerializer},
        errors=(401, 403, 404, 503),
        tags=["lifecycle"],
    )
    async def get(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Return the workers that have loaded the model, and the reasons of its last unloads."""
        return json_response(await _status(await served_model_get(name=model_id)))


class ModelFitView(ApiView):
    """GET /v1/models/{id}/fit."""

    @documented(
        operation_id="models_fit",
        summary="Whether a model would fit",
        description=(
            "Each worker plans the load for its own device and memory, and loads nothing. A key that is for some "
            "models only gets no others in evicts; used_bytes has their memory."
        ),
        responses={200: ModelFitSerializer},
        errors=(401, 403, 404, 422, 503),
        tags=["lifecycle"],
    )
    async def get(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Return the weights, states and budget per worker."""
        served = await served_model_get(name=model_id)
        found = await model_fit(served.checkpoint_id)
        allowed = self.principal.models
        if allowed is not None:
            for worker in found:
                worker["evicts"] = [item for item in worker["evicts"] if item["name"] in allowed]
        return json_response(
            {"id": served.name, "object": "model.fit", "fits": fits_somewhere(found), "workers": found}
        )


class ModelLoadView(ApiView):
    """POST /v1/models/{id}/load."""

    @documented(
        operation_id="models_load",
        summary="Load a model",
        description="Returns at once; GET the status for progress. A model that is loaded already stays as it is.",
        responses={202: ModelStatusSerializer},
        errors=(401, 403, 404, 503),
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Request a worker to load the model."""
        served = await served_model_get(name=model_id)
        await request_load(served.checkpoint_id)
        return json_response(await _status(served), status=202)


class ModelUnloadView(ApiView):
    """POST /v1/models/{id}/unload."""

    @documented(
        operation_id="models_unload",
        summary="Unload a model",
        description="It takes no new requests and goes once the running ones have ended; pinned ones go, too.",
        responses={202: ModelStatusSerializer},
        errors=(401, 403, 404, 503),
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Request all workers to unload the model."""
        served = await served_model_get(name=model_id)
        await request_unload(served.checkpoint_id)
        return json_response(await _status(served), status=202)


class ModelPinView(ApiView):
    """POST /v1/models/{id}/pin."""

    @documented(
        operation_id="models_pin",
        summary="Pin a model, or unpin it",
        description="A pinned model never makes room for another one and outlives its keep_alive. Stored as a setting.",
        request=PinRequestSerializer,
        responses={200: ModelStatusSerializer},
        errors=_ERRORS,
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest, model_id: str) -> HttpResponseBase:
        """Store the pin for this and later loads."""
        pinned = (await json_body(request, PinRequestSerializer.shared().parse))["pinned"]
        served = await served_model_get(name=model_id)
        await sync_to_async(_store_pin)(served.checkpoint_id, pinned)
        await send_control("pin" if pinned else "unpin", served.checkpoint_id)
        return json_response({**await _status(served), "pinned": pinned})


def _store_pin(checkpoint_id: str, pinned: bool) -> None:
    checkpoint_settings_update(checkpoint=checkpoint_get(checkpoint_id), values={"pinned": "yes" if pinned else None})


async def _status(served: ServedModel) -> dict[str, Any]:
    states, workers = await model_states(), await worker_states()
    state = states.get(served.checkpoint_id) or ModelState(served.checkpoint_id)
    own = [
        model for worker in workers.values() for model in worker.models if model.checkpoint_id == state.checkpoint_id
    ]
    error = state.error
    return {
        "id": served.name,
        "object": "model.status",
        **state.shown(),
        "error": None if error is None else {"message": error.get("message", ""), "type": "server_error",
                                             "param": error.get("param"), "code": "model_load_failed"},
        "pinned": any(model.pinned for model in own),
        "keep_alive_s": own[0].keep_alive_s if own else None,
        "load_s": own[0].load_s if own else None,
        "departures": departures_of(workers.values(), state.checkpoint_id, principal_current().models),
    }  # fmt: skip


# --- requests ----------------------------------------------------------------------------------


class RequestsView(ApiView):
    """GET /v1/requests."""

    @documented(
        operation_id="requests_list",
        summary="List the running requests",
        description="A key sees its own; operators see all. Requests that no worker has taken yet aren't listed.",
        responses={200: RunningRequestListSerializer},
        errors=(401, 403, 503),
        tags=["lifecycle"],
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """List the requests that workers hold, including queued jobs."""
        found = await _requests(self)
        names = await sync_to_async(_names)([item.checkpoint_id for item in found.values()])
        data = [
            {
                "id": request_id,
                "object": "request",
                "model": names.get(item.checkpoint_id, item.checkpoint_id),
                "owner": item.owner,
                "state": item.state,
                "tokens": item.tokens,
                "prompts": len(item.parts),
                "received_at": item.received_at,
                "workers": item.workers,
            }
            for request_id, item in found.items()
        ]
        return json_response({"object": "list", "data": data})


class RequestCancelView(ApiView):
    """POST /v1/requests/{id}/cancel."""

    admits_itself = True

    @documented(
        operation_id="requests_cancel",
        summary="Cancel a running request",
        description="Whoever waits for it gets an error. A key can cancel its own requests, operators any.",
        responses={200: RequestCancelledSerializer},
        errors=(401, 403, 404, 409, 503),
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest, request_id: str) -> HttpResponseBase:
        """Cancel all prompts of a request."""
        found = (await _requests(self)).get(request_id)
        if found is None:
            raise UnknownRequest(
                f"No request {request_id[:80]!r} of yours is running; GET /v1/requests lists those that are.",
                param="request_id",
            )
        await request_cancel(found)
        return json_response({"id": request_id, "object": "request", "cancelled": True})


async def _requests(view: ApiView) -> dict[str, RunningRequest]:
    """Return the requests that the caller may see, by id."""
    found = merged_requests(await running_requests())
    principal = view.principal
    return {key: item for key, item in found.items() if principal.sees_everything or item.owner == principal.tenant}


def _names(checkpoint_ids: list[str]) -> dict[str, str]:
    rows = checkpoint_list().filter(pk__in=set(checkpoint_ids))
    return {str(key): name for key, name in rows.values_list("pk", "served_model_name")}
