"""Serve Ollama's endpoints about models: tags, ps, show, delete, copy, version."""

from __future__ import annotations

import contextlib
from uuid import UUID

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from inference.api.base import json_body, json_response
from inference.api.ollama import models, schemas
from inference.api.ollama.base import LATEST, OllamaView, served_by_ollama_name
from inference.dialects.ollama.serializers import OllamaCopyRequestSerializer, OllamaModelNameSerializer
from inference.errors import Unavailable
from inference.serving.promotion import revision_means, served_promote
from inference.transport.control import request_unload
from inference.transport.worker_states import worker_states
from inference.values.served_model import ServedModel
from models_registry.adapters import adapter_remove
from models_registry.aliases import alias_delete, alias_revision
from models_registry.selectors import checkpoint_get
from models_registry.services import checkpoint_check_unused, checkpoint_delete

OLLAMA_VERSION = "0.13.4"
"""Version of Ollama that clients are shown: they compare it with the least one that they need.

Copilot needs 0.6.4, ``codex --oss`` 0.13.4, the first one with the Responses API.
"""


class TagsView(OllamaView):
    """GET /api/tags."""

    @schemas.documented(
        operation_id="ollama_tags",
        summary="List the served models",
        responses={200: schemas.TagsSerializer},
        errors=(401, 403, 503),
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """List all models by name."""
        return json_response({"models": await sync_to_async(models.tags)()})


class RunningView(OllamaView):
    """GET /api/ps."""

    @schemas.documented(
        operation_id="ollama_ps",
        summary="List the models in memory",
        responses={200: schemas.RunningModelsSerializer},
        errors=(401, 403, 503),
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """List the models in memory, from the workers' heartbeats."""
        workers = await worker_states()
        return json_response({"models": await sync_to_async(models.running)(workers)})


class ShowView(OllamaView):
    """POST /api/show."""

    @schemas.documented(
        operation_id="ollama_show",
        summary="One served model",
        request=OllamaModelNameSerializer,
        responses={200: schemas.ShownModelSerializer},
        errors=(400, 401, 403, 404, 415, 503),
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Return a model's template, sizes and capabilities."""
        served = await served_by_ollama_name(await json_body(request, OllamaModelNameSerializer.shared().model_name))
        return json_response(await sync_to_async(models.shown)(served.checkpoint_id))


class DeleteView(OllamaView):
    """DELETE /api/delete."""

    @schemas.documented(
        operation_id="ollama_delete",
        summary="Take a model out of the registry",
        description=(
            "An alias or a LoRA adapter goes alone. Uploaded files go with their model; files that were registered by "
            "path or pulled stay."
        ),
        request=OllamaModelNameSerializer,
        responses={200: None},
        errors=(400, 401, 403, 404, 409, 415, 503),
    )
    async def delete(self, request: HttpRequest) -> HttpResponseBase:
        """Unload a model, then delete it."""
        name = await json_body(request, OllamaModelNameSerializer.shared().model_name)
        if await sync_to_async(_delete_alias)(name.removesuffix(LATEST)):
            return HttpResponse(status=200)
        served = await served_by_ollama_name(name)
        if served.adapter:  # its base has other users
            await sync_to_async(_remove_adapter)(served.checkpoint_id, served.adapter)
            return HttpResponse(status=200)
        await sync_to_async(_check_unused)(served.checkpoint_id)
        with contextlib.suppress(Unavailable):  # a model may be deleted while no worker can be reached
            await request_unload(served.checkpoint_id)
        await sync_to_async(_delete)(served.checkpoint_id)
        return HttpResponse(status=200)


class CopyView(OllamaView):
    """POST /api/copy."""

    @schemas.documented(
        operation_id="ollama_copy",
        summary="Give a model another name",
        description="Makes an alias, or promotes the source there if there is one; no files are copied.",
        request=OllamaCopyRequestSerializer,
        responses={200: None},
        errors=(400, 401, 403, 404, 409, 415, 503),
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Store the new name as an alias of the checkpoint or adapter."""
        values = await json_body(request, OllamaCopyRequestSerializer.shared().parse)
        served = await served_by_ollama_name(values["source"])
        name = values["destination"].removesuffix(LATEST)
        await sync_to_async(_copy)(name, served, self.principal.name)
        return HttpResponse(status=200)


class VersionView(OllamaView):
    """GET /api/version."""

    @schemas.documented(
        operation_id="ollama_version",
        summary="The version of Ollama that clients may expect",
        responses={200: schemas.VersionSerializer},
        errors=(401,),
    )
    async def get(self, request: HttpRequest) -> HttpResponseBase:
        """Return a version of Ollama; blazr's own is that of /openapi.json."""
        return json_response({"version": OLLAMA_VERSION})


def _copy(name: str, served: ServedModel, author_name: str) -> None:
    if not revision_means(alias_revision(name), served):  # copying twice is no error
        served_promote(name=name, served=served, author_name=author_name)


def _delete_alias(name: str) -> bool:
    return alias_delete(name=name)


def _remove_adapter(checkpoint_id: str, adapter_id: str) -> None:
    adapter_remove(checkpoint=checkpoint_get(checkpoint_id), adapter_id=UUID(adapter_id))


def _check_unused(checkpoint_id: str) -> None:
    checkpoint_check_unused(checkpoint_get(checkpoint_id))


def _delete(checkpoint_id: str) -> None:
    checkpoint_delete(checkpoint=checkpoint_get(checkpoint_id))
