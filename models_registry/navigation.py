"""The entries of the pages' navigation, in their order; an account sees those that exist and that it may open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import NoReverseMatch, reverse


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the left rail.

    Attributes:
        section: What a page names as its ``section``, so that its entry is marked.
        url_name: Of the page; an entry whose page isn't there is left out.
        permission: What the account needs for the page.
        icon: A name in ``models_registry.templatetags.console.ICONS``.
    """

    section: str
    label: str
    url_name: str
    permission: str
    icon: str


ENTRIES = (
    Entry("dashboard", "Overview", "dashboard", "models_registry.view_checkpoint", "gauge"),
    Entry("models", "Models", "models", "models_registry.view_checkpoint", "layers"),
    Entry("runs", "Runs", "runs", "models_registry.view_checkpoint", "chart"),
    Entry("playground", "Playground", "playground", "inference.scope_generate", "speech"),
    Entry("jobs", "Jobs", "jobs", "inference.scope_files", "list"),
    Entry("requests", "Requests", "requests", "inference.view_usagerecord", "pulse"),
    Entry("keys", "Keys & usage", "keys", "inference.view_usageday", "key"),
    Entry("settings", "Settings", "settings", "inference.scope_admin", "sliders"),
)


def entries_of(user: Any) -> Iterator[tuple[Entry, str]]:
    """Yield the entries that an account may open, each with its address."""
    for entry in ENTRIES:
        if not user.has_perm(entry.permission):
            continue
        try:
            yield entry, reverse(entry.url_name)
        except NoReverseMatch:
            continue
