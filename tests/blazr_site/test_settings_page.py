"""Settings on their page."""

from __future__ import annotations

import pytest
from django.test import Client

from inference.errors import Unavailable
from inference.models import EnergyPrice
from inference.records.energy_price import energy_price
from inference.values.states import EnergyReading, WorkerState
from models_registry import live
from models_registry.models import ServerChoices
from models_registry.server_choices import server_choices
from tests.accounts import account

pytestmark = pytest.mark.django_db


def test_values_are_shown_with_their_sources_and_secrets_are_not(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLAZR_SECRET_KEY", "hush-hush")
    client.force_login(account("owner", "superuser"))
    text = client.get("/settings/").content.decode()
    for piece in ("max_model_len", "default", "BLAZR_SECRET_KEY", "********", "/settings/accounts/"):
        assert piece in text, piece
    assert "hush-hush" not in text


def test_operators_see_settings_without_accounts_and_others_nothing(client: Client) -> None:
    client.force_login(account("edwin", "operator"))
    text = client.get("/settings/").content.decode()
    assert "max_model_len" in text and "/settings/accounts/" not in text
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


def test_the_price_of_energy_is_set_and_taken_away(client: Client) -> None:
    client.force_login(account("edwin", "operator"))
    assert "Set the price" in client.get("/settings/").content.decode()
    assert client.post("/settings/energy-price/", {"per_kwh": "0,32", "currency": "€"})["location"] == "/settings/"
    text = client.get("/settings/").content.decode()
    assert 'value="0.32"' in text and 'value="€"' in text and "Set by edwin" in text
    client.post("/settings/energy-price/", {"per_kwh": "", "currency": "€"})
    assert energy_price().per_kwh is None and EnergyPrice.objects.count() == 1


def test_another_price_is_refused_and_members_set_none(client: Client) -> None:
    client.force_login(account("edwin", "operator"))
    response = client.post("/settings/energy-price/", {"per_kwh": "<b>", "currency": "EUR"})
    assert response.status_code == 400 and b"a number from 0 to 1,000,000" in response.content
    client.force_login(account("maria", "member"))
    assert client.post("/settings/energy-price/", {"per_kwh": "1", "currency": "EUR"}).status_code == 403
    assert not EnergyPrice.objects.exists()


def test_it_is_said_which_counters_are_read_or_why_none(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = EnergyReading("boot/0", "box/package-0", "rapl")
    workers = {
        "w-0": WorkerState("w-0", device="cpu", energy=(reading,)),
        "w-1": WorkerState("w-1", device="cuda:0", energy_notice="The driver is too old."),
    }
    client.force_login(account("edwin", "operator"))
    monkeypatch.setattr(live, "model_states_sync", dict)
    monkeypatch.setattr(live, "worker_states_sync", lambda: workers)
    text = client.get("/settings/").content.decode()
    assert "w-0, cpu: reads box/package-0 (RAPL)" in text and "w-1, cuda:0: The driver is too old." in text
    monkeypatch.setattr(live, "worker_states_sync", dict)
    assert "No worker is alive, so no energy is counted" in client.get("/settings/").content.decode()

    def away() -> dict[str, WorkerState]:
        raise Unavailable("Redis is away.")

    monkeypatch.setattr(live, "model_states_sync", away)
    assert "Redis is away." in client.get("/settings/").content.decode()
