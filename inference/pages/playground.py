"""The playground: what people try a model on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import F

from inference.models import SavedChat
from inference.models.readable_rows import readable_rows
from inference.pages.chats import GENERATE, MAX_CHAT_BYTES, chat_get, chat_state, shown_turns
from inference.serving.served_models import max_model_len
from inference.text.tool_calls.prompting import effort_variables
from models_registry.adapter_names import full_name
from models_registry.models import Adapter, AliasRevision, Checkpoint, ModelAlias
from models_registry.sampling_defaults import sampling_defaults
from models_registry.selectors import checkpoint_list
from models_registry.views import StaffPage

NUM_SHOWN = 50
MAX_REVISIONS = 100
"""Most revisions of aliases that can be chosen, the newest ones."""
ICONS = ("speech", "copy", "pencil", "retry", "go-on", "tokens", "back", "forth", "close")
"""Of the buttons that the page's script makes."""


class PlaygroundPage(StaffPage):
    """The page where people try a model, or compare two."""

    template_name = "registry/playground.html"
    section = "playground"
    permission_required = GENERATE

    def page_context(self, **kwargs: Any) -> dict[str, Any]:
        """Return what can be chosen, with abilities and recommended parameters, and the account's chats."""
        requested = self.request.GET.get("chat")
        chat = None if requested is None else chat_state(chat_get(requested, self.request.user))
        return {
            "models": model_choices(),
            "icons": ICONS,
            "limits": {
                "key_required": settings.BLAZR_API_KEY_REQUIRED,
                "body_bytes": settings.BLAZR_MAX_BODY_BYTES,
                "chat_bytes": MAX_CHAT_BYTES,
            },
            "chats": readable_rows(SavedChat.objects.filter(owner_id=self.request.user.pk).defer("content"), NUM_SHOWN),
            "chat": chat,
            "turns": [] if chat is None else shown_turns(chat),
        }


def model_choices() -> list[dict[str, Any]]:
    """Return every name that requests may call, grouped: models, aliases, revisions of aliases, adapters.

    An alias, a revision or an adapter has the abilities of the checkpoint that it means.
    """
    abilities = {row.pk: _abilities(row) for row in _checkpoints()}
    named = [(found["base"], "Models", key) for key, found in abilities.items()]
    aliases = ModelAlias.objects.select_related("current")
    named += [
        (row.name, "Aliases", row.current.checkpoint_id)
        for row in readable_rows(aliases)
        if row.current and row.current.is_available
    ]
    revisions = AliasRevision.objects.select_related("alias").order_by("-created_at", "-number")
    for revision in readable_rows(revisions, MAX_REVISIONS):
        if not revision.is_available:
            continue
        named.append((f"{revision.alias.name}@{revision.number}", "Revisions", revision.checkpoint_id))
    adapters = Adapter.objects.filter(state=Adapter.State.AVAILABLE)
    for adapter in readable_rows(adapters):
        base = abilities.get(adapter.base_id)
        if base is not None:
            named.append((full_name(base["base"], adapter.name), "Adapters", adapter.base_id))
    return [{"name": name, "kind": kind, **abilities[key]} for name, kind, key in named if key in abilities]


def _checkpoints() -> list[Any]:
    """Return the available checkpoints with what the database reads out of their inspections, which are long."""
    parts = {
        "tokenizer_kind": F("inspection__tokenizer__kind"),
        "chat_template": F("inspection__tokenizer__chat_template"),
        "vision": F("inspection__spec__vision"),
    }
    return readable_rows(checkpoint_list().filter(state=Checkpoint.State.AVAILABLE).annotate(**parts))


def _abilities(row: Any) -> dict[str, Any]:
    """Return what a checkpoint can do, and the sampling parameters that it recommends."""
    template = row.chat_template if isinstance(row.chat_template, str) else ""
    return {
        "base": row.served_model_name,
        "has_text": row.tokenizer_kind != "none",
        "has_chat": bool(template),
        "has_vision": bool(row.vision),
        "has_effort": bool(effort_variables(template)),
        "context": max_model_len(row),
        "sampling": sampling_defaults(Path(row.directory)),
    }
