"""Quantisations over HTTP: who may start them, shapes, errors in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from blazr_site.api_docs import openapi_document
from models_registry import services
from models_registry.models import Checkpoint, Quantisation
from tests.accounts import account
from tests.live.conftest import wait_until
from tests.models_registry.api.test_views import SOME_ID, error_of
from tests.models_registry.test_quantisations import COPY

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("storage_dirs")]


@pytest.fixture
def source(hybrid: Path) -> Checkpoint:
    return services.checkpoint_register(path=hybrid, served_model_name="tiny")


def start(client: Client, source: Checkpoint, **body: object):
    path = f"/registry/checkpoints/{source.pk}/quantisations"
    return client.post(path, json.dumps(body), content_type="application/json")


@pytest.mark.django_db(transaction=True)
def test_a_quantisation_over_http(browser: Client, source: Checkpoint, child_script: Callable[[str], Path]) -> None:
    child_script(COPY)
    begun = start(browser, source, max_bytes=5000, max_kl=0.5, served_model_name="smaller")
    assert begun.status_code == 201
    body = begun.json()
    assert (body["source"], body["source_name"], body["served_model_name"]) == (str(source.pk), "tiny", "smaller")
    assert (body["max_bytes"], body["max_kl"], body["checkpoint"]) == (5000, 0.5, None)
    path = f"/registry/quantisations/{body['id']}"
    wait_until(lambda: browser.get(path).json()["state"] != "running", 60, "the end")
    done = browser.get(path).json()
    assert (done["state"], done["reason"], done["progress"], done["checkpoint"]) == ("done", "", 1.0, body["id"])
    assert browser.get(f"/registry/checkpoints/{source.pk}/quantisations").json() == [done]
    text = browser.get(f"/models/{done['checkpoint']}/").content.decode()
    assert "Quantised from tiny" in text
    wrong = browser.delete(path)
    assert (wrong.status_code, error_of(wrong)["code"]) == (409, "conflict")


def test_cancelling_over_http(browser: Client, source: Checkpoint) -> None:
    row = Quantisation.objects.create(
        source=source, source_name="tiny", served_model_name="a", max_kl=1.0, active_at=timezone.now()
    )
    assert start(browser, source, max_kl=1.0).status_code == 429
    cancelled = browser.delete(f"/registry/quantisations/{row.pk}").json()
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled by vera")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "max_bytes", "say how small or how close"), ({"max_bytes": "4GB"}, "max_bytes", "integer"),
        ({"max_bytes": 10**40}, "max_bytes", "it must be above 0 and below the"),
        ({"max_kl": "near"}, "max_kl", "number"), ({"max_kl": 10**400}, "max_kl", ""), ({"max_kl": -1}, "max_kl", ""),
        ({"max_kl": 0.1, "served_model_name": "a b"}, "served_model_name", "letters, digits"),
        ({"max_kl": 0.1, "served_model_name": "tiny"}, "served_model_name", "is taken"),
    ],
)  # fmt: skip
def test_bad_bodies(browser: Client, source: Checkpoint, body: dict, param: str, message: str) -> None:
    wrong = start(browser, source, **body)
    assert wrong.status_code in (400, 409), wrong.content
    error = error_of(wrong)
    assert message in error["message"]
    assert error["param"] in (param, None)
    assert not Quantisation.objects.exists()


def test_bodies_that_are_no_json_numbers(browser: Client, source: Checkpoint) -> None:
    path = f"/registry/checkpoints/{source.pk}/quantisations"
    for body in ("[]", "{", '{"max_kl": NaN}', '{"max_kl": 1e999}', '{"max_kl": Infinity}', '{"max_bytes": 1.5}'):
        wrong = browser.post(path, body, content_type="application/json")
        assert wrong.status_code == 400, body
        error_of(wrong)
    assert not Quantisation.objects.exists()


def test_what_is_not_there(browser: Client) -> None:
    for method, path in (
        ("get", f"checkpoints/{SOME_ID}/quantisations"), ("get", f"quantisations/{SOME_ID}"),
        ("delete", f"quantisations/{SOME_ID}"),
    ):  # fmt: skip
        assert getattr(browser, method)(f"/registry/{path}").status_code == 404, path


def test_viewers_follow_and_operators_act(client: Client, source: Checkpoint) -> None:
    row = Quantisation.objects.create(
        source=source, source_name="tiny", served_model_name="a", max_kl=1.0, active_at=timezone.now()
    )
    client.force_login(account("walt", "viewer"))
    assert client.get(f"/registry/checkpoints/{source.pk}/quantisations").status_code == 200
    assert client.get(f"/registry/quantisations/{row.pk}").json()["state"] == "running"
    for refused in (start(client, source, max_kl=1.0), client.delete(f"/registry/quantisations/{row.pk}")):
        assert (refused.status_code, error_of(refused)["code"]) == (403, "permission_denied")


def test_the_document_has_the_routes() -> None:
    paths = openapi_document()["paths"]
    create = paths["/registry/checkpoints/{checkpoint_id}/quantisations"]["post"]
    assert create["responses"].keys() == {"201", "401", "4XX", "503"}
    assert "max_kl" in str(create["requestBody"]) or "QuantisationCreate" in str(create["requestBody"])
    assert set(paths["/registry/quantisations/{quantisation_id}"]) == {"get", "delete"}


def test_the_page_offers_it_to_those_who_may(browser: Client, client: Client, source: Checkpoint) -> None:
    path = f"/models/{source.pk}/"
    page = browser.get(path).content.decode()
    assert 'id="quantise"' in page
    assert 'value="tiny-quantised"' in page
    client.force_login(account("walt", "viewer"))
    assert 'id="quantise"' not in client.get(path).content.decode()
    Checkpoint.objects.update(state="missing")
    assert 'id="quantise"' not in browser.get(path).content.decode()
