"""The frame: who sees which entries, what the devices hold, and where errors lead."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.template import Context, Template
from django.test import Client

from inference.modelling.spec import LayerSpec
from inference.values.states import WorkerState
from models_registry import live
from models_registry.layer_ribbon import layer_ribbon
from models_registry.templatetags.console import ICONS, memory_words, model_state, ribbon_line
from tests.accounts import account

pytestmark = pytest.mark.django_db


def entries(client: Client, path: str = "/models/") -> list[str]:
    nav = re.search(r'<nav class="nav".*?</nav>', client.get(path).content.decode(), re.DOTALL).group(0)
    return re.findall(r"</svg>([^<]+)</a>", nav)


def test_the_rail_has_the_entries_that_an_account_may_open(client: Client) -> None:
    client.force_login(account("vera", "viewer"))
    assert entries(client) == ["Overview", "Models", "Runs"]
    client.force_login(account("maria", "member"))
    assert entries(client)[:5] == ["Overview", "Models", "Runs", "Playground", "Jobs"]


def test_an_entry_whose_page_is_not_there_is_left_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from models_registry import navigation

    ghost = navigation.Entry("ghost", "Ghost", "no-such-page", "models_registry.view_checkpoint", "list")
    monkeypatch.setattr(navigation, "ENTRIES", (*navigation.ENTRIES, ghost))
    client.force_login(account("owner", "superuser"))
    assert "Ghost" not in entries(client)


def test_tables_are_linked_for_whom_they_show_something(client: Client) -> None:
    for role, sees in (("superuser", True), ("operator", True), (None, False)):
        client.force_login(account(f"account-{role}", role))
        text = client.get("/", follow=True).content.decode()
        assert 'href="/docs"' in text  # the rail is there
        assert ('href="/admin/"' in text) is sees, role


def test_the_memory_of_the_devices_is_in_the_bar(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerState("w-0", memory_used_bytes=3 << 30, memory_budget_bytes=16 << 30)
    monkeypatch.setattr(live, "worker_states_sync", lambda: {"w-0": worker})
    monkeypatch.setattr(live, "model_states_sync", dict)
    client.force_login(account("vera", "viewer"))
    text = client.get("/models/").content.decode()
    assert "3.0 GiB of 16.0 GiB" in text
    assert re.search(rf'<meter[^>]* value="{3 << 30}[".]', text)


def test_errors_keep_the_navigation_of_who_is_signed_in(client: Client) -> None:
    assert 'class="nav"' not in client.get("/nowhere").content.decode()
    client.force_login(account("vera", "viewer"))
    assert entries(client, "/nowhere") == ["Overview", "Models", "Runs"]
    refused = client.get("/playground/")
    assert refused.status_code == 403
    assert "The role of vera" in refused.content.decode()
    assert entries(client, "/playground/") == ["Overview", "Models", "Runs"]


def test_a_failure_keeps_the_navigation(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.raise_request_exception = False
    monkeypatch.setattr("inference.pages.overview.overview", lambda: 1 / 0)
    client.force_login(account("vera", "viewer"))
    response = client.get("/")
    assert response.status_code == 500
    assert "Something went wrong" in response.content.decode()
    assert 'class="nav"' in response.content.decode()


def test_a_form_without_its_token_gets_a_page() -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(account("vera", "viewer"))
    response = strict.post("/logout/")
    assert response.status_code == 403
    assert "load the page again" in response.content.decode()


@pytest.mark.parametrize("name", ICONS)
def test_icons_are_drawn_and_silent(name: str) -> None:
    drawn = Template("{% load console %}{% icon name %}").render(Context({"name": name}))
    assert ICONS[name] in drawn and 'aria-hidden="true"' in drawn


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"memory_bytes": 2048}, "2.0 KiB"),
        ({"memory_bytes": 3072, "states_bytes": 1024}, "2.0 KiB weights + 1.0 KiB reserved states"),
        (
            {"memory_bytes": 3072, "states_bytes": 0, "adapter_bytes": 1024},
            "2.0 KiB weights + 1.0 KiB adapters' reserve",
        ),
        (
            {"memory_bytes": 4096, "states_bytes": 1024, "adapter_bytes": 2048},
            "1.0 KiB weights + 1.0 KiB reserved states + 2.0 KiB adapters' reserve",
        ),
        ({"memory_bytes": 1024, "states_bytes": 1024, "adapter_bytes": 2048}, "1.0 KiB"),
    ],
)
def test_memory_is_named_by_what_it_is_for(seen: dict[str, int], words: str) -> None:
    assert memory_words(seen) == words


@pytest.mark.parametrize(
    ("row", "drawn"),
    [
        ({"state": "missing"}, '<span class="text-nowrap"><i class="dot missing" aria-hidden="true"></i>files missing'),
        (
            {"state": "available", "live": {"status": "unloaded"}},
            '<span class="text-nowrap"><i class="dot unloaded" aria-hidden="true"></i>not loaded',
        ),
        (
            {"state": "available", "live": {"status": "loading", "progress": 0.25, "stage": "<weights>"}},
            '<span class="text-nowrap" title="&lt;weights&gt;"><i class="dot loading" aria-hidden="true"></i>'
            "loading 25%",
        ),
    ],
)
def test_a_state_is_drawn_in_words(row: dict[str, Any], drawn: str) -> None:
    assert model_state(row) == f"{drawn}</span>"


def test_a_ribbon_says_and_draws_its_layers() -> None:
    ribbon = layer_ribbon([LayerSpec(), LayerSpec()])
    assert ribbon_line(ribbon, "100%") == (
        '<svg class="ribbon-line" viewBox="0 0 20 14" preserveAspectRatio="none" width="100%" height="14" role="img"'
        ' aria-label="2 layers: 2 none"><title>2 layers: 2 none</title></svg>'
    )
