"""Validate bodies of /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from inference.dialects.fields import (
    JSONObjectField,
    StrictBooleanField,
    StrictCharField,
    TokenIdsField,
    optional,
    optional_boolean,
)
from inference.dialects.openai.chat_fields import ReasoningEffortField, ToolsField
from inference.dialects.openai.message_fields import MessagesField
from inference.dialects.strict_serializer import StrictSerializer


class TokenizeRequestSerializer(StrictSerializer):
    """Body of POST /tokenize; one of prompt, content and messages."""

    model = StrictCharField(required=False, max_length=256, help_text="May be left out where one model only is served.")
    prompt = StrictCharField(required=False, allow_blank=True, help_text="Text (vLLM's name).")
    content = StrictCharField(required=False, allow_blank=True, help_text="Text (blazr's older name).")
    messages = MessagesField(required=False, help_text="A conversation; rendered with the model's template.")
    add_special_tokens = optional_boolean("Default: true for text, false for messages.")
    parse_special = StrictBooleanField(
        required=False, default=False, help_text="Read control tokens in the text as such."
    )
    add_generation_prompt = optional_boolean("As in chat.")
    continue_final_message = optional_boolean("As in chat.")
    chat_template_kwargs = optional(JSONObjectField, "As in chat.")
    tools = optional(ToolsField, "As in chat; the prompt tells the model of them.")
    reasoning_effort = optional(ReasoningEffortField, "As in chat.")
    return_token_strs = StrictBooleanField(required=False, default=False, help_text="Each token's text as well.")


class ApplyTemplateRequestSerializer(StrictSerializer):
    """Body of POST /apply-template."""

    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    messages = MessagesField(help_text="1 to 4,096 messages.")
    add_generation_prompt = optional_boolean("As in chat.")
    continue_final_message = optional_boolean("As in chat.")
    chat_template_kwargs = optional(JSONObjectField, "As in chat.")
    tools = optional(ToolsField, "As in chat; the prompt tells the model of them.")
    reasoning_effort = optional(ReasoningEffortField, "As in chat.")


class DetokenizeRequestSerializer(StrictSerializer):
    """Body of POST /detokenize."""

    model = StrictCharField(required=False, max_length=256, help_text="May be left out where one model only is served.")
    tokens = TokenIdsField(help_text="Ids below the model's vocabulary size.")
    skip_special_tokens = StrictBooleanField(
        required=False, default=False, help_text="Leave control tokens out. Default: false."
    )
