"""Load and unload LoRA adapters by vLLM's routes."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes

from inference.api.base import ApiView, json_body
from inference.api.schemas import documented
from inference.dialects.fields import StrictCharField
from inference.dialects.strict_serializer import StrictSerializer
from inference.serving.lora_adapters import lora_adapter_load, lora_adapter_unload

_MAX_NAME_CHARS = 256
_MAX_PATH_CHARS = 4096


class LoadLoraRequestSerializer(StrictSerializer):
    """Body of POST /v1/load_lora_adapter."""

    lora_name = StrictCharField(
        max_length=_MAX_NAME_CHARS,
        help_text="BASE:NAME; or NAME on a server with one model, where it becomes an alias of BASE:NAME.",
    )
    lora_path = StrictCharField(
        max_length=_MAX_PATH_CHARS,
        help_text="Directory of a LoRA or an X-LoRA on the server, below one that the server's settings name.",
    )


class UnloadLoraRequestSerializer(StrictSerializer):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name = StrictCharField(max_length=_MAX_NAME_CHARS, help_text="As it was loaded.")


class LoadLoraView(ApiView):
    """POST /v1/load_lora_adapter."""

    @documented(
        operation_id="lora_adapter_load",
        summary="Register a LoRA adapter and load it",
        description="vLLM's route. The files are checked against the base; if that is loaded, the adapter is in memory "
        "when the response comes, and otherwise with the base. It stays there until it is unloaded. One that is "
        "registered with this path is only loaded.",
        request=LoadLoraRequestSerializer,
        responses={(200, "text/plain"): OpenApiTypes.STR},
        errors=(400, 401, 403, 404, 409, 415, 422, 503),
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Register an adapter by path, and load it ahead of its requests."""
        values = await json_body(request, LoadLoraRequestSerializer.shared().parse)
        name = values["lora_name"]
        await sync_to_async(lora_adapter_load)(name=name, path=values["lora_path"], principal=self.principal)
        return _text(f"Success: LoRA adapter '{name}' added successfully.")


class UnloadLoraView(ApiView):
    """POST /v1/unload_lora_adapter."""

    @documented(
        operation_id="lora_adapter_unload",
        summary="Unload a LoRA adapter and forget it",
        description="vLLM's route. Requests that run end as they are, later ones are answered with 404; the files "
        "stay. POST /registry/checkpoints/{id}/adapters/{id}/unload takes it out of memory alone.",
        request=UnloadLoraRequestSerializer,
        responses={(200, "text/plain"): OpenApiTypes.STR},
        errors=(400, 401, 403, 404, 409, 415, 503),
        tags=["lifecycle"],
    )
    async def post(self, request: HttpRequest) -> HttpResponseBase:
        """Take an adapter out of memory and registry."""
        name = (await json_body(request, UnloadLoraRequestSerializer.shared().parse))["lora_name"]
        await sync_to_async(lora_adapter_unload)(name=name, principal=self.principal)
        return _text(f"Success: LoRA adapter '{name}' removed successfully.")


def _text(words: str) -> HttpResponse:
    return HttpResponse(words, content_type="text/plain; charset=utf-8")
