"""Response schemas of Anthropic's endpoints; tests compare real responses with the schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers

from inference.api.schemas import _ERRORS, View, _one_of


class MessageErrorBodySerializer(serializers.Serializer[Any]):
    """The error's type and message."""

    type = serializers.CharField()
    message = serializers.CharField()


class MessageErrorSerializer(serializers.Serializer[Any]):
    """Anthropic's error object."""

    type = _one_of("error")
    error = MessageErrorBodySerializer()


class CacheCreationSerializer(serializers.Serializer[Any]):
    """Tokens that are kept, by the duration that their mark asks for."""

    ephemeral_5m_input_tokens = serializers.IntegerField(min_value=0)
    ephemeral_1h_input_tokens = serializers.IntegerField(min_value=0)


class MessageUsageSerializer(serializers.Serializer[Any]):
    """Token counts; the whole input is input_tokens, cache_read_ and cache_creation_input_tokens together."""

    input_tokens = serializers.IntegerField(min_value=0)
    cache_read_input_tokens = serializers.IntegerField(min_value=0)
    cache_creation_input_tokens = serializers.IntegerField(
        min_value=0, help_text="Tokens behind those, up to the last cache_control mark, whose state is kept."
    )
    cache_creation = CacheCreationSerializer(required=False)
    output_tokens = serializers.IntegerField(min_value=0)


class ContentBlockSerializer(serializers.Serializer[Any]):
    """A block of the message; type decides about the members."""

    type = _one_of("text", "thinking", "tool_use")
    text = serializers.CharField(required=False)
    thinking = serializers.CharField(required=False)
    signature = serializers.CharField(required=False, help_text="Always unsigned.")
    id = serializers.CharField(required=False)
    name = serializers.CharField(required=False)
    input = serializers.DictField(required=False)


class MessageResponseSerializer(serializers.Serializer[Any]):
    """The assistant's message."""

    id = serializers.CharField()
    type = _one_of("message")
    role = _one_of("assistant")
    model = serializers.CharField()
    content = ContentBlockSerializer(many=True)
    stop_reason = _one_of("end_turn", "max_tokens", "stop_sequence", "tool_use")
    stop_sequence = serializers.CharField(allow_null=True)
    usage = MessageUsageSerializer()


class TokenCountSerializer(serializers.Serializer[Any]):
    """Tokens of a prompt."""

    input_tokens = serializers.IntegerField(min_value=0)


def documented_message(
    *, request: Any, responses: dict[Any, Any], errors: tuple[int, ...], **kwargs: Any
) -> Callable[[View], View]:
    """``inference.api.schemas.documented`` with errors in Anthropic's shape."""
    responses = dict(responses)
    for status in errors:
        responses[status] = OpenApiResponse(MessageErrorSerializer, description=_ERRORS[status])
    decorator: Callable[[View], View] = extend_schema(request=request, responses=responses, **kwargs)
    return decorator
