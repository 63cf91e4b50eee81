"""Response schemas of /v1/responses; tests compare real responses with the schemas."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from inference.api.schemas import _one_of


class ResponseTokensDetailsSerializer(serializers.Serializer[Any]):
    """Parts of the input."""

    cached_tokens = serializers.IntegerField(min_value=0)
    cache_write_tokens = serializers.IntegerField(min_value=0, help_text="0: writing into the cache is free.")
    cache_miss_reason = serializers.CharField(required=False)


class ResponseOutputDetailsSerializer(serializers.Serializer[Any]):
    """Parts of the output."""

    reasoning_tokens = serializers.IntegerField(min_value=0)


class ResponseUsageSerializer(serializers.Serializer[Any]):
    """Token counts."""

    input_tokens = serializers.IntegerField(min_value=0)
    input_tokens_details = ResponseTokensDetailsSerializer()
    output_tokens = serializers.IntegerField(min_value=0)
    output_tokens_details = ResponseOutputDetailsSerializer()
    total_tokens = serializers.IntegerField(min_value=0)


class ResponseErrorSerializer(serializers.Serializer[Any]):
    """Why a response failed."""

    code = serializers.CharField(help_text="One of OpenAI's codes: invalid_prompt, rate_limit_exceeded, server_error.")
    message = serializers.CharField()
    param = serializers.CharField(allow_null=True)
    type = serializers.CharField(help_text="The code that other endpoints would give.")


class ResponseItemSerializer(serializers.Serializer[Any]):
    """A message, reasoning, a function call or its output; type decides about the members."""

    id = serializers.CharField()
    type = _one_of("message", "reasoning", "function_call", "function_call_output")
    status = _one_of("in_progress", "completed", "incomplete")
    role = _one_of("user", "assistant", "system", "developer")
    content = serializers.ListField(child=serializers.DictField(), required=False, help_text="Text parts.")
    summary = serializers.ListField(child=serializers.DictField(), required=False, help_text="Always empty.")
    encrypted_content = serializers.CharField(required=False, help_text="Reasoning to send back, if included.")
    call_id = serializers.CharField(required=False)
    name = serializers.CharField(required=False)
    namespace = serializers.CharField(required=False, help_text="The function's, if it has one.")
    arguments = serializers.CharField(required=False, help_text="JSON, as the model wrote it.")
    output = serializers.JSONField(required=False, help_text="A text or a list of text parts.")

    def get_fields(self) -> dict[str, Any]:
        """Make ``role`` optional, because only messages have one."""
        fields = super().get_fields()
        fields["role"].required = False
        return fields


class ResponseSerializer(serializers.Serializer[Any]):
    """A response: status, output, and the parameters of the request."""

    id = serializers.CharField()
    object = _one_of("response")
    created_at = serializers.IntegerField()
    completed_at = serializers.IntegerField(allow_null=True)
    status = _one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
    background = serializers.BooleanField()
    error = ResponseErrorSerializer(allow_null=True)
    incomplete_details = serializers.DictField(allow_null=True, help_text="reason: max_output_tokens.")
    instructions = serializers.CharField(allow_null=True)
    max_output_tokens = serializers.IntegerField(allow_null=True)
    max_tool_calls = serializers.IntegerField(allow_null=True, help_text="Always null.")
    metadata = serializers.DictField(child=serializers.CharField())
    model = serializers.CharField()
    output = ResponseItemSerializer(many=True)
    parallel_tool_calls = serializers.BooleanField()
    previous_response_id = serializers.CharField(allow_null=True)
    prompt_cache_key = serializers.CharField(allow_null=True)
    reasoning = serializers.DictField()
    safety_identifier = serializers.CharField(allow_null=True)
    service_tier = _one_of("default")
    store = serializers.BooleanField()
    temperature = serializers.FloatField()
    text = serializers.DictField()
    tool_choice = serializers.JSONField(help_text="A word or an object.")
    tools = serializers.ListField(child=serializers.DictField())
    top_logprobs = serializers.IntegerField()
    top_p = serializers.FloatField()
    truncation = _one_of("auto", "disabled")
    usage = ResponseUsageSerializer(allow_null=True)
    user = serializers.CharField(allow_null=True)
    state = serializers.CharField(required=False, help_text="Name of the saved state that the conversation follows.")


class ResponseDeletedSerializer(serializers.Serializer[Any]):
    """The response was deleted."""

    id = serializers.CharField()
    object = _one_of("response")
    deleted = serializers.BooleanField()


class ResponseItemListSerializer(serializers.Serializer[Any]):
    """A page of items."""

    object = _one_of("list")
    data = ResponseItemSerializer(many=True)  # type: ignore[assignment]
    first_id = serializers.CharField(allow_null=True)
    last_id = serializers.CharField(allow_null=True)
    has_more = serializers.BooleanField()


class InputTokensSerializer(serializers.Serializer[Any]):
    """Tokens of a prompt."""

    object = _one_of("response.input_tokens")
    input_tokens = serializers.IntegerField(min_value=0)
