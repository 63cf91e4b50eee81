"""What the frame of the pages is made of: navigation, icons, the memory of the devices, unfinished transfers."""

from __future__ import annotations

from typing import Any

from django import template
from django.apps import apps
from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from inference.host.units import format_bytes
from models_registry import live
from models_registry.layer_ribbon import LayerRibbon
from models_registry.navigation import entries_of
from models_registry.sign_in import is_staff

register = template.Library()

ICONS = {
    "gauge": "M4 18a9 9 0 1 1 16 0M12 16l4-6",
    "layers": "m12 3 9 5-9 5-9-5 9-5Zm-9 9.5 9 5 9-5M3 17l9 5 9-5",
    "speech": "M4 5h16v11H11l-5 4v-4H4Z",
    "list": "M9 6h11M9 12h11M9 18h11M4 6h.01M4 12h.01M4 18h.01",
    "pulse": "M3 12h4l3-8 4 16 3-8h4",
    "key": "M15 9a4 4 0 1 0-4 4l1 1v2h2v2h2v2h4v-4l-5.5-5.5M14 7h.01",
    "sliders": "M4 7h9m4 0h3M4 17h3m4 0h9M15 5v4M9 15v4",
    "search": "M10.5 17a6.5 6.5 0 1 1 0-13 6.5 6.5 0 0 1 0 13Zm5-2 5 5",
    "theme": "M12 3a9 9 0 1 0 0 18ZM12 3a9 9 0 0 1 0 18",
    "user": "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm-8 9a8 8 0 0 1 16 0",
    "transfer": "M7 20V5m0 0L3 9m4-4 4 4m6-5v15m0 0 4-4m-4 4-4-4",
    "chart": "M4 20V4m0 16h16M8 15l4-5 3 3 5-7",
    "copy": "M9 9h11v11H9ZM5 15H4V4h11v1",
    "pencil": "m4 20 1-4L16 5l3 3L8 19l-4 1Zm10-13 3 3",
    "retry": "M20 5v5h-5m4.5 0A8 8 0 1 0 20 14",
    "image": "M4 5h16v14H4Zm0 11 5-5 4 4 3-3 4 4M15.5 9h.01",
    "send": "M12 20V5m0 0-6 6m6-6 6 6",
    "stop": "M7 7h10v10H7Z",
    "close": "M6 6l12 12M18 6 6 18",
    "plus": "M12 5v14M5 12h14",
    "halves": "M4 5h16v14H4Zm8 0v14",
    "back": "m14 6-6 6 6 6",
    "forth": "m10 6 6 6-6 6",
    "tokens": "M4 7h6v4H4Zm9 0h7v4h-7ZM4 14h9v4H4Zm12 0h4v4h-4Z",
    "go-on": "m5 5 8 7-8 7Zm11 0v14",
}
"""Paths of icons in a box of 24 by 24, drawn as lines."""


LIVE_WORDS = {"unloaded": "not loaded", "failed": "load failed"}
"""States of models in words, where the word isn't the state's own name."""


@register.simple_tag
def icon(name: str) -> SafeString:
    """Draw an icon; it says nothing to screen readers."""
    return format_html(
        '<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d="{}"/></svg>',
        ICONS[name],
    )


@register.simple_tag(takes_context=True)
def navigation(context: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the rail for the request's account."""
    section = context.get("section")
    return [
        {"label": entry.label, "icon": entry.icon, "url": url, "is_current": entry.section == section}
        for entry, url in entries_of(context["request"].user)
    ]


@register.simple_tag(takes_context=True)
def sees_tables(context: dict[str, Any]) -> bool:
    """Whether the request's account sees any table of Django's admin."""
    request, site = context["request"], admin.site
    tables = (site.get_model_admin(model) for model in apps.get_models() if site.is_registered(model))
    # As ``get_app_list`` decides it, which takes 4 ms with all addresses; the first table is enough here.
    return site.has_permission(request) and any(
        table.has_module_permission(request) and True in table.get_model_perms(request).values() for table in tables
    )


@register.simple_tag(takes_context=True)
def device_memory(context: dict[str, Any]) -> dict[str, Any] | None:
    """Return used and available bytes of all workers; None where nobody knows, or the account may not see it."""
    if not context["request"].user.has_perm("models_registry.view_checkpoint"):
        return None
    workers = live.look().workers
    budget = sum(worker.memory_budget_bytes for worker in workers)
    if not budget:
        return None
    used = sum(worker.memory_used_bytes for worker in workers)
    return {"used": used, "budget": budget, "high": budget * 9 // 10}


@register.simple_tag(takes_context=True)
def live_region(context: dict[str, Any], region_id: str, topics: str) -> SafeString:
    """Write the attributes of an element whose children are drawn anew, from the page's address, when a topic changes.

    The element itself stays, with what htmx knows of it: a topic that changes while its children are on their way would
    be lost with it, and a list for other filters with its target. Text directly in it isn't drawn again.

    Args:
        region_id: The element's id.
        topics: Names of ``inference.pages.live.TOPICS``, with spaces between.
    """
    triggers = ", ".join(f"live:{topic} from:body" for topic in topics.split())
    return format_html(
        'id="{0}" hx-get="{1}" hx-trigger="{2}" hx-select="#{0} > *" hx-target="this" hx-swap="innerHTML"',
        region_id,
        context["request"].get_full_path(),
        triggers,
    )


@register.simple_tag
def memory_words(seen: dict[str, Any]) -> str:
    """Return what a loaded model takes: "257.0 MiB weights + 5.1 GiB reserved states"; adapters' reserve is a third."""
    memory, states, adapters = seen["memory_bytes"], seen.get("states_bytes", 0), seen.get("adapter_bytes", 0)
    if not 0 < states + adapters < memory:
        return format_bytes(memory)
    parts = ((memory - states - adapters, "weights"), (states, "reserved states"), (adapters, "adapters' reserve"))
    return " + ".join(f"{format_bytes(size)} {name}" for size, name in parts if size)


@register.simple_tag
def model_state(row: dict[str, Any]) -> SafeString:
    """Draw the state of a checkpoint: its files first, then what the workers say; ``row`` as the API has it."""
    mark, words, stage = _state_words(row)
    title = format_html(' title="{}"', stage) if stage else ""
    return format_html(
        '<span class="text-nowrap"{}><i class="dot {}" aria-hidden="true"></i>{}</span>', title, mark, words
    )


def _state_words(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return the class of a state's mark, the state in words, and the stage of its load."""
    if row["state"] != "available":
        return row["state"], "files missing" if row["state"] == "missing" else "refused", ""
    seen = row["live"]
    words = LIVE_WORDS.get(seen["status"], seen["status"])
    if seen["status"] == "loading":
        words = f"loading {seen['progress']:.0%}"
    return seen["status"], words, seen.get("stage") or ""


@register.simple_tag
def ribbon_line(ribbon: LayerRibbon, width: int | str) -> SafeString:
    """Draw the layers of a model in one line, ``width`` wide."""
    return format_html(
        '<svg class="ribbon-line" viewBox="0 0 {} 14" preserveAspectRatio="none" width="{}" height="14" role="img"'
        ' aria-label="{}"><title>{}</title>{}</svg>',
        ribbon.width,
        width,
        ribbon.words,
        ribbon.words,
        ribbon.drawing,
    )


@register.simple_tag(takes_context=True)
def is_inside(context: dict[str, Any]) -> bool:
    """Whether a page with the frame may be shown: to staff that is signed in, also on pages of errors."""
    user = getattr(context.get("request"), "user", None)
    return user is not None and is_staff(user)
