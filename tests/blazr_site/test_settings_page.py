"""Settings and accounts on their page."""

from __future__ import annotations

import pytest
from django.test import Client

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
