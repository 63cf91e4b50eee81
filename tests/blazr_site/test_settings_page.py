"""Settings and accounts on their page."""

from __future__ import annotations

import pytest
from django.test import Client

from models_registry.models import ServerChoices
from models_registry.server_choices import server_choices
from tests.accounts import account

pytestmark = pytest.mark.django_db


def test_values_are_shown_with_their_sources_and_secrets_are_not(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLAZR_SECRET_KEY", "hush-hush")
    account("vera", "viewer")
    client.force_login(account("owner", "superuser"))
    text = client.get("/settings/").content.decode()
    for piece in ("max_model_len", "default", "BLAZR_SECRET_KEY", "********", "vera", "viewer"):
        assert piece in text, piece
    assert "hush-hush" not in text


def test_operators_see_settings_without_accounts_and_others_nothing(client: Client) -> None:
    client.force_login(account("edwin", "operator"))
    text = client.get("/settings/").content.decode()
    assert "max_model_len" in text and "May sign in" not in text
    client.force_login(account("maria", "member"))
    assert client.get("/settings/").status_code == 403


def test_passports_are_turned_off_for_all_models_and_on_again(client: Client) -> None:
    client.force_login(account("edwin", "operator"))
    assert "Turn off for all models" in client.get("/settings/").content.decode()
    assert client.post("/settings/passports/", {"makes_passports": "no"})["location"] == "/settings/"
    text = client.get("/settings/").content.decode()
    assert "makes no passports by itself" in text and "Chosen by edwin" in text
    assert not server_choices().makes_passports
    client.post("/settings/passports/", {"makes_passports": "yes"})
    assert server_choices().makes_passports and ServerChoices.objects.count() == 1


@pytest.mark.parametrize("value", ["", "maybe", "<b>"])
def test_other_choices_are_refused(client: Client, value: str) -> None:
    client.force_login(account("edwin", "operator"))
    response = client.post("/settings/passports/", {"makes_passports": value})
    assert response.status_code == 400 and b"it must be yes or no" in response.content
    assert not ServerChoices.objects.exists()


def test_members_choose_nothing(client: Client) -> None:
    client.force_login(account("maria", "member"))
    assert client.post("/settings/passports/", {"makes_passports": "no"}).status_code == 403
    assert server_choices().makes_passports
