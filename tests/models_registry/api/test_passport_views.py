"""Passports over HTTP: made, followed, cancelled; an alias is told to demand one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inference.demo.paths import PREBUILT_DIRECTORY
from models_registry import services
from models_registry.aliases import alias_get, alias_promote
from models_registry.models import Checkpoint, Passport
from tests.live.conftest import wait_until
from tests.models_registry.api.test_views import SOME_ID
from tests.models_registry.test_passport_gaps import PASSED
from tests.models_registry.test_passports import OUTPUT

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


@pytest.fixture
def source() -> Checkpoint:
    return services.checkpoint_register(path=PREBUILT_DIRECTORY, served_model_name="tiny")


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error of a refusal with this status."""
    assert response.status_code == status, response.content
    return response.json()["error"]


def send(client: Client, method: str, path: str, **body: object):
    return client.generic(method, path, json.dumps(body), content_type="application/json")


@pytest.mark.django_db(transaction=True)
def test_a_passport_over_http(browser: Client, source: Checkpoint, child_script: Callable[[str], Path]) -> None:
    child_script(OUTPUT)
    response = send(browser, "POST", f"/registry/checkpoints/{source.pk}/passports")
    assert response.status_code == 201, response.content
    path = f"/registry/passports/{response.json()['id']}"
    wait_until(lambda: browser.get(path).json()["state"] == "done", 60, "the passport")
    shown = browser.get(path).json()
    assert (shown["entries"], shown["source_name"], shown["is_automatic"]) == ([PASSED], "tiny", False)
    assert browser.get(f"/registry/checkpoints/{source.pk}/passports").json() == [shown]


def test_a_running_passport_is_cancelled(browser: Client, source: Checkpoint) -> None:
    row = Passport.objects.create(source=source, source_name="tiny", active_at=timezone.now())
    refusal = error_of(send(browser, "POST", f"/registry/checkpoints/{source.pk}/passports"), 429)
    assert "another passport is running" in refusal["message"]
    shown = send(browser, "POST", f"/registry/passports/{row.pk}/cancel").json()
    assert (shown["state"], shown["reason"]) == ("cancelled", "cancelled by vera")


def test_an_alias_is_told_to_demand_one(browser: Client, source: Checkpoint) -> None:
    alias_promote(name="chat", checkpoint=source)
    response = send(browser, "PATCH", "/registry/aliases/chat", demands_passport=True)
    assert response.json() == {"name": "chat", "demands_passport": True}
    assert alias_get("chat").demands_passport
    assert error_of(send(browser, "PATCH", "/registry/aliases/chat"), 400)
    assert error_of(send(browser, "PATCH", "/registry/aliases/nobody", demands_passport=True), 404)


def test_what_is_not_there(browser: Client) -> None:
    assert error_of(send(browser, "GET", f"/registry/passports/{SOME_ID}"), 404)
    assert error_of(send(browser, "POST", f"/registry/passports/{SOME_ID}/cancel"), 404)
    assert error_of(send(browser, "POST", f"/registry/checkpoints/{SOME_ID}/passports"), 404)


def test_the_page_shows_it(browser: Client, source: Checkpoint) -> None:
    page = f"/models/{source.pk}/?tab=passport"
    assert "None was made yet." in browser.get(page).content.decode()
    entries = [PASSED, {**PASSED, "name": "int4", "state": "failed", "words": "<b>hostile</b>"}]
    values = {"source": source, "source_name": "tiny", "active_at": timezone.now()}
    Passport.objects.create(**values, state="done", entries=entries, identity="old")
    alias_promote(name="chat", checkpoint=source)
    text = browser.get(page).content.decode()
    assert "Its files or facts have changed since this passport was made." in text
    assert "&lt;b&gt;hostile&lt;/b&gt;" in text
    assert 'data-demand="chat"' in text
    Passport.objects.create(**values, progress=0.25, stage="checking: logits")
    assert "checking: logits" in browser.get(page).content.decode()
