"""Bodies and responses of /v1/states."""

from __future__ import annotations

from rest_framework import serializers

from inference.dialects.fields import (
    JSONObjectField,
    KeepAliveField,
    PromptField,
    StrictBooleanField,
    StrictCharField,
    optional,
    optional_boolean,
    optional_integer,
)
from inference.dialects.openai.chat_fields import ToolsField
from inference.dialects.openai.message_fields import MessagesField
from inference.dialects.strict_serializer import StrictSerializer


class StateCreateSerializer(StrictSerializer):
    """Body of POST /v1/states: a name, and the prompt after which the state is wanted."""

    name = StrictCharField(max_length=64, help_text="Letters, digits, dots, hyphens and underscores.")
    model = StrictCharField(max_length=256, help_text="A name from GET /v1/models.")
    prompt = optional(PromptField, "Text or token ids; or messages.")
    messages = optional(MessagesField, "A conversation, which may end with an answer.")
    tools = optional(ToolsField, "As in chat completions; with messages.")
    chat_template_kwargs = optional(JSONObjectField, "As in chat completions; with messages.")
    add_special_tokens = optional_boolean("Put the begin-of-sequence token before a prompt. Default: true.")
    state = optional(StrictCharField, "Name of a state that the prompt follows.", max_length=64)
    pinned = optional_boolean("It neither expires nor makes room for others. Default: false.")
    expires_after = optional(JSONObjectField, "anchor: created_at, seconds: 3600 to 2592000. Default: the server's.")
    replace = optional_boolean("Take the place of a state of this name. Default: false, an error.")
    priority = optional_integer(-100, 100, "As in completions.")
    keep_alive = KeepAliveField()


class StateChangeSerializer(StrictSerializer):
    """Body of POST /v1/states/{name}."""

    pinned = StrictBooleanField(help_text="Whether it stays until it is deleted.")


class StateUploadSerializer(serializers.Serializer[None]):
    """The form of POST /v1/states/{name}/content."""

    file = serializers.FileField(help_text="A saved state's file.")


class StateSerializer(serializers.Serializer[None]):
    """A saved state."""

    id = serializers.CharField()
    object = serializers.CharField(help_text="state")
    name = serializers.CharField()
    model = serializers.CharField(help_text="Served name of the model that it was saved with.")
    weights = serializers.CharField(help_text="SHA-256 of the model's weights; others can't go on from it.")
    tokens = serializers.IntegerField(help_text="Number of tokens that it goes on from.")
    bytes = serializers.IntegerField(help_text="Size of its file.")
    takes_messages = serializers.BooleanField(help_text="Whether messages can follow it, and not only text.")
    pinned = serializers.BooleanField()
    created_at = serializers.IntegerField()
    last_used_at = serializers.IntegerField()
    expires_at = serializers.IntegerField(allow_null=True)


class StateListSerializer(serializers.Serializer[None]):
    """A page of states."""

    object = serializers.CharField(help_text="list")
    data = StateSerializer(many=True)  # type: ignore[assignment]
    first_id = serializers.CharField(allow_null=True)
    last_id = serializers.CharField(allow_null=True)
    has_more = serializers.BooleanField()


class StateDeletedSerializer(serializers.Serializer[None]):
    """A state that was deleted."""

    id = serializers.CharField()
    object = serializers.CharField(help_text="state")
    deleted = serializers.BooleanField()
