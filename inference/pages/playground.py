"""The playground, and the chats that accounts keep of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import orjson
from django.conf import settings
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from inference.errors import InvalidRequest, NotFound, QueueFull
from inference.models import SavedChat
from inference.models.readable_rows import json_value, readable_rows
from models_registry.api.views import StaffView, valid_values
from models_registry.sampling_defaults import sampling_defaults
from models_registry.views import StaffPage, with_tokenizers

GENERATE = "inference.scope_generate"
MAX_CHATS = 200
"""Of one account."""
MAX_CHAT_BYTES = 1 << 20
NUM_SHOWN = 50
TITLE_CHARS = 60


class PlaygroundPage(StaffPage):
    """The page where people try a model."""

    template_name = "registry/playground.html"
    section = "playground"
    permission_required = GENERATE

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return the models with their abilities and recommended parameters, and the account's chats."""
        requested = self.request.GET.get("chat")
        chat = None if requested is None else chat_get(requested, self.request.user)
        return {
            "models": [
                {
                    "name": row.served_model_name,
                    "has_text": row.tokenizer_kind != "none",
                    "has_chat": row.chat_template_origin is not None,
                    "sampling": sampling_defaults(Path(row.directory)),
                }
                for row in with_tokenizers()
            ],
            "key_required": settings.BLAZR_API_KEY_REQUIRED,
            "chats": readable_rows(SavedChat.objects.filter(owner_id=self.request.user.pk).defer("content"), NUM_SHOWN),
            "chat": None
            if chat is None
            else {"id": str(chat.chat_id), "model": chat.model, **json_value(chat, "content")},
        }


class TurnSerializer(serializers.Serializer[Any]):
    """One turn of a chat."""

    role = serializers.ChoiceField(choices=("user", "assistant"))
    content = serializers.CharField(allow_blank=True, trim_whitespace=False)


class ChatSerializer(serializers.Serializer[Any]):
    """A chat as the page sends it."""

    model = serializers.CharField(max_length=128)
    mode = serializers.ChoiceField(choices=("chat", "completion"))
    system = serializers.CharField(allow_blank=True, required=False, default="", trim_whitespace=False)
    params = serializers.DictField(child=serializers.FloatField(), required=False, default=dict)
    turns = TurnSerializer(many=True)


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
