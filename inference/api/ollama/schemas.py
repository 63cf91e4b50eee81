"""Response schemas of Ollama's API, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers

from inference.api import schemas as openai
from inference.api.schemas import View

TAG = "ollama"
"""Marks the operations of Ollama's API in the document."""


class OllamaErrorSerializer(serializers.Serializer[Any]):
    """Ollama's error object."""

    error = serializers.CharField()


class _CountsSerializer(serializers.Serializer[Any]):
    model = serializers.CharField()
    created_at = serializers.CharField()
    done = serializers.BooleanField()
    done_reason = serializers.CharField(help_text="stop, length, load or unload.")
    total_duration = serializers.IntegerField(required=False, help_text="Nanoseconds.")
    load_duration = serializers.IntegerField(required=False, help_text="Until the engine had the request.")
    prompt_eval_count = serializers.IntegerField(required=False)
    prompt_eval_duration = serializers.IntegerField(required=False)
    eval_count = serializers.IntegerField(required=False)
    eval_duration = serializers.IntegerField(required=False)


class GeneratedSerializer(_CountsSerializer):
    """Response of POST /api/generate without a stream."""

    response = serializers.CharField(allow_blank=True)
    thinking = serializers.CharField(required=False)


class OllamaMessageSerializer(serializers.Serializer[Any]):
    """A message of the assistant."""

    role = serializers.CharField()
    content = serializers.CharField(allow_blank=True)
    thinking = serializers.CharField(required=False)
    tool_calls = serializers.ListField(child=serializers.DictField(), required=False)


class ChattedSerializer(_CountsSerializer):
    """Response of POST /api/chat without a stream."""

    message = OllamaMessageSerializer()


class EmbeddedSerializer(serializers.Serializer[Any]):
    """Response of POST /api/embed."""

    model = serializers.CharField()
    embeddings = serializers.ListField(child=serializers.ListField(child=serializers.FloatField()))
    total_duration = serializers.IntegerField(help_text="Nanoseconds.")
    load_duration = serializers.IntegerField()
    prompt_eval_count = serializers.IntegerField()


class LegacyEmbeddedSerializer(serializers.Serializer[Any]):
    """Response of POST /api/embeddings."""

    embedding = serializers.ListField(child=serializers.FloatField())


class ModelDetailsSerializer(serializers.Serializer[Any]):
    """Format, family and size of a model."""

    parent_model = serializers.CharField(allow_blank=True)
    format = serializers.CharField()
    family = serializers.CharField()
    families = serializers.ListField(child=serializers.CharField())
    parameter_size = serializers.CharField()
    quantization_level = serializers.CharField()


class TagSerializer(serializers.Serializer[Any]):
    """A model that can be served."""

    name = serializers.CharField()
    model = serializers.CharField()
    modified_at = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes on disk.")
    digest = serializers.CharField(help_text="Changes with the files.")
    details = ModelDetailsSerializer()


class TagsSerializer(serializers.Serializer[Any]):
    """Response of GET /api/tags."""

    models = TagSerializer(many=True)


class RunningModelSerializer(serializers.Serializer[Any]):
    """A model in memory."""

    name = serializers.CharField()
    model = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes in memory.")
    digest = serializers.CharField()
    details = ModelDetailsSerializer()
    expires_at = serializers.CharField(help_text="When it goes if no request comes.")
    size_vram = serializers.IntegerField(help_text="Bytes on CUDA devices.")
    context_length = serializers.IntegerField()


class RunningModelsSerializer(serializers.Serializer[Any]):
    """Response of GET /api/ps."""

    models = RunningModelSerializer(many=True)


class ShownModelSerializer(serializers.Serializer[Any]):
    """Response of POST /api/show."""

    modelfile = serializers.CharField(allow_blank=True)
    parameters = serializers.CharField(allow_blank=True)
    template = serializers.CharField(allow_blank=True, help_text="The model's own chat template (Jinja).")
    details = ModelDetailsSerializer()
    model_info = serializers.DictField(child=serializers.JSONField())
    capabilities = serializers.ListField(child=serializers.CharField())
    modified_at = serializers.CharField()


class PulledSerializer(serializers.Serializer[Any]):
    """Response of POST /api/pull without a stream."""

    status = serializers.CharField(help_text="success.")


class VersionSerializer(serializers.Serializer[Any]):
    """Response of GET /api/version."""

    version = serializers.CharField()


def documented(
    *, request: Any = None, responses: dict[Any, Any], errors: tuple[int, ...] = (), **kwargs: Any
) -> Callable[[View], View]:
    """``inference.api.schemas.documented`` with errors in Ollama's shape."""
    failures = {status: OpenApiResponse(OllamaErrorSerializer) for status in errors}
    return openai.documented(request=request, responses={**responses, **failures}, tags=[TAG], **kwargs)


def schema_hook(result: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
    """Set the shape of all errors of Ollama's routes, including errors from other hooks (drf-spectacular's hook)."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/OllamaError"}}}
    for methods in result["paths"].values():
        for operation in methods.values():
            if operation.get("tags") == [TAG]:
                for status, response in operation["responses"].items():
                    if status[0] in "45":
                        response["content"] = content
    return result
