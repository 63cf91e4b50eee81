"""The chats that accounts keep of the playground."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from inference.errors import InvalidRequest, NotFound, QueueFull
from inference.models import SavedChat
from inference.models.readable_rows import json_value, readable_rows
from models_registry.api.views import StaffView, valid_values

GENERATE = "inference.scope_generate"
MAX_CHATS = 200
"""Of one account."""
MAX_CHAT_BYTES = 1 << 20
TITLE_CHARS = 60
MAX_NAME_CHARS = 128
IMAGE_URL = r"\Adata:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+\Z"


def _text(**options: Any) -> serializers.CharField:
    """Return a field of a text that is kept as it is."""
    return serializers.CharField(allow_blank=True, trim_whitespace=False, **options)


class CallSerializer(serializers.Serializer[Any]):
    """A call of a tool."""

    id = _text(max_length=MAX_NAME_CHARS)
    name = _text(max_length=MAX_NAME_CHARS)
    arguments = _text()


class ImageSerializer(serializers.Serializer[Any]):
    """A picture of a turn; its content is left out where the chat would be too large."""

    name = _text(max_length=255)
    url = serializers.RegexField(IMAGE_URL, required=False)


class TurnSerializer(serializers.Serializer[Any]):
    """One turn of a conversation.

    ``parent`` is the number of the turn before it, null of a first one; left out, it is the one before it in the list.
    Turns with one parent are branches of the conversation.
    """

    role = serializers.ChoiceField(choices=("user", "assistant", "tool"))
    content = _text()
    # Fields have an attribute of this name, which the metaclass leaves alone.
    parent = serializers.IntegerField(min_value=0, allow_null=True, required=False)  # type: ignore[assignment]
    reasoning = _text(required=False)
    tool_calls = serializers.ListField(child=CallSerializer(), required=False)
    tool_call_id = _text(max_length=MAX_NAME_CHARS, required=False)
    images = serializers.ListField(child=ImageSerializer(), required=False)
    model = _text(max_length=MAX_NAME_CHARS, required=False)
    figures = serializers.DictField(child=serializers.FloatField(), required=False)
    reason = _text(max_length=MAX_NAME_CHARS, required=False)


class ConversationSerializer(serializers.Serializer[Any]):
    """The turns with one model; ``leaf`` is the number of the last one that is shown."""

    model = serializers.CharField(max_length=MAX_NAME_CHARS)
    turns = TurnSerializer(many=True)
    leaf = serializers.IntegerField(min_value=0, allow_null=True, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse numbers of turns that aren't there; a parent comes before its children."""
        for number, turn in enumerate(attrs["turns"]):
            parent = turn.get("parent")
            if parent is not None and parent >= number:
                words = f"turn {number} has the parent {parent}, which is no earlier one."
                raise serializers.ValidationError({"turns": words})
        leaf = attrs.get("leaf")
        if leaf is not None and leaf >= len(attrs["turns"]):
            raise serializers.ValidationError({"leaf": f"there is no turn {leaf}."})
        return attrs


class ChatSerializer(ConversationSerializer):
    """A chat as the page sends it; ``second`` is the conversation of a second column."""

    mode = serializers.ChoiceField(choices=("chat", "completion"))
    system = _text(required=False, default="")
    params = serializers.DictField(child=serializers.FloatField(), required=False, default=dict)
    texts = serializers.DictField(child=_text(), required=False, default=dict)
    second = ConversationSerializer(required=False)


class ChatView(StaffView):
    """One saved chat, which only its account reads and writes."""

    schema = None
    permissions = {"PUT": GENERATE, "DELETE": GENERATE}

    def put(self, request: Request, chat_id: uuid.UUID) -> Response:
        """Store a chat under an id that the page chose, or store it again."""
        values = dict(valid_values(ChatSerializer(data=request.data)))
        model = values.pop("model")
        content = orjson.dumps(values)
        if len(content) > MAX_CHAT_BYTES:
            raise InvalidRequest(
                f"the chat has {len(content)} bytes; at most {MAX_CHAT_BYTES} are kept. Start a new one.", param="turns"
            )
        owner_id = int(request.user.pk or 0)
        mine = SavedChat.objects.filter(owner_id=owner_id)
        first = next((turn["content"] for turn in values["turns"]), "")
        written = {"model": model, "content": content.decode(), "title": " ".join(first.split())[:TITLE_CHARS] or model}
        row = mine.filter(chat_id=chat_id).first()
        if row is None:
            if SavedChat.objects.filter(chat_id=chat_id).exists():
                raise NotFound("there is no such chat.", param="chat")
            if mine.count() >= MAX_CHATS:
                raise QueueFull(f"{MAX_CHATS} chats are kept already; delete some first.", retry_after_s=60)
            SavedChat.objects.create(chat_id=chat_id, owner_id=owner_id, **written)
        else:
            for name, value in written.items():
                setattr(row, name, value)
            row.save()
        return Response({"id": str(chat_id), "title": written["title"]})

    def delete(self, request: Request, chat_id: uuid.UUID) -> Response:
        """Forget a chat."""
        SavedChat.objects.filter(chat_id=chat_id, owner_id=request.user.pk).delete()
        return Response(status=204)


def chat_get(chat_id: str, user: Any) -> SavedChat:
    """Return a chat of this account.

    Raises:
        NotFound: There is none, or it is another account's.
    """
    try:
        key = uuid.UUID(chat_id)
    except ValueError:
        raise NotFound("there is no such chat.", param="chat") from None
    rows = readable_rows(SavedChat.objects.filter(chat_id=key, owner=user), 1)
    if not rows:
        raise NotFound("there is no such chat.", param="chat")
    return rows[0]


def chat_state(chat: SavedChat) -> dict[str, Any]:
    """Return a chat as the page's script reads it."""
    return {"id": str(chat.chat_id), "model": chat.model, **json_value(chat, "content")}


def shown_turns(conversation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the turns from the first one to the leaf, in their order."""
    turns = conversation["turns"]
    leaf = conversation.get("leaf")
    at = len(turns) - 1 if leaf is None else leaf
    path = []
    while isinstance(at, int) and 0 <= at < len(turns):
        path.append(turns[at])
        parent = turns[at].get("parent", at - 1)
        at = parent if isinstance(parent, int) and parent < at else None
    return path[::-1]
