"""Keys and usage on their page."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from inference.access.api_keys import api_key_create
from inference.models import ApiKey, EnergyDay, UsageDay
from inference.pages.keys import key_rows, key_words, usage_by_day
from inference.records.energy_days import energy_divide
from inference.records.energy_price import energy_price_choose
from inference.values.limits import KeyLimits
from tests.accounts import account
from tests.inference.rows import make_checkpoint

pytestmark = pytest.mark.django_db

OPEN_DRAWER = re.compile(r'<dialog class="drawer" [^>]* open>')


@pytest.fixture
def owner(client: Client) -> Client:
    client.force_login(account("owner", "superuser"))
    return client


def test_a_key_is_shown_once_with_a_line_to_try(owner: Client) -> None:
    form = {"name": "mine", "scopes": ["generate"], "requests_per_minute": "60"}
    response = owner.post("/keys/new/", form)
    assert (response.status_code, response["Cache-Control"]) == (201, "no-store")
    key = re.search(r"blazr_\w{12}_\w{46}", response.content.decode()).group(0)
    assert "It has the scopes generate, for all models, with 60 requests a minute" in response.content.decode()
    row = ApiKey.objects.get()
    assert (row.name, row.scopes, row.requests_per_minute) == ("mine", ["generate"], 60)
    assert key not in owner.get("/keys/").content.decode()


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"name": ""}, "needs 1 to 100 characters"),
        ({"name": "x", "scopes": ["fly"]}, "fly"),
        ({"name": "x", "scopes": ["generate"], "expires": "soon"}, "a date such as"),
        ({"name": "x", "scopes": ["generate"], "max_concurrent": "many"}, "a whole number"),
    ],
)
def test_a_wrong_form_is_explained_and_makes_nothing(owner: Client, form: dict[str, object], words: str) -> None:
    response = owner.post("/keys/new/", form)
    text = response.content.decode()
    assert response.status_code == 400 and words in text.partition('id="form-error"')[2]
    assert OPEN_DRAWER.search(text)
    assert not ApiKey.objects.exists()


def test_a_refused_form_comes_back_with_its_fields_on_a_page_that_works(owner: Client) -> None:
    make_checkpoint("tiny")
    row, _ = api_key_create(name="known")
    form = {
        "name": "<mine>", "scopes": ["metrics"], "models": ["tiny"], "expires": "2031-02-03", "tokens_per_minute": "0",
    }  # fmt: skip
    text = owner.post("/keys/new/", form).content.decode()
    for piece in (
        'value="&lt;mine&gt;"', 'value="2031-02-03"', 'name="tokens_per_minute" type="number" min="1" max="1000000000" '
        'value="0"', "<option selected>tiny</option>", 'value="metrics" checked', f"/keys/{row.prefix}/revoke/",
        'href="/keys/?format=csv"', 'action="/keys/"',
    ):  # fmt: skip
        assert piece in text, piece
    assert 'value="generate" checked' not in text
    assert "hx-get" not in text  # this address can't be read again


def test_the_form_is_in_a_drawer_that_an_address_opens(owner: Client) -> None:
    text = owner.get("/keys/").content.decode()
    assert '<dialog class="drawer" id="new-key"' in text and not OPEN_DRAWER.search(text)
    assert 'href="/keys/?new=1" data-drawer="new-key"' in text and 'value="generate" checked' in text
    text = owner.get("/keys/?new=1").content.decode()
    assert OPEN_DRAWER.search(text) and 'href="/keys/?format=csv"' in text


def test_revoking(owner: Client) -> None:
    row, _ = api_key_create(name="old")
    assert owner.post(f"/keys/{row.prefix}/revoke/")["Location"] == "/keys/"
    assert ApiKey.objects.get().revoked_at is not None
    assert owner.post("/keys/unknown/revoke/").status_code == 404


def test_roles_see_and_do_what_is_theirs(client: Client) -> None:
    row, _ = api_key_create(name="secret name")
    client.force_login(account("edwin", "operator"))
    text = client.get("/keys/").content.decode()
    assert "Usage" in text and "secret name" not in text and "Make the key" not in text
    assert "new-key" not in client.get("/keys/?new=1").content.decode()
    assert client.post("/keys/new/", {"name": "x"}).status_code == 403
    assert client.post(f"/keys/{row.prefix}/revoke/").status_code == 403
    client.force_login(account("vera", "viewer"))
    assert client.get("/keys/").status_code == 403


def test_usage_is_summed_and_exported(owner: Client) -> None:
    row, _ = api_key_create(name="busy")
    today = timezone.now().date()
    UsageDay.objects.create(day=today, tenant=f"key:{row.pk}", model="m", requests=3, prompt_tokens=70)
    text = owner.get("/keys/").content.decode()
    assert "busy" in text and "70 tokens" in text and 'data-label="Prompt tokens">70</td>' in text
    assert "busy" in owner.get("/keys/?group_by=day,key,model").content.decode()
    exported = b"".join(owner.get("/keys/?format=csv").streaming_content).decode()
    assert exported.splitlines()[0].startswith("key,key_name,model") and "busy,m,3,70" in exported
    assert owner.get("/keys/?from=never").status_code == 400
    assert usage_by_day()[f"key:{row.pk}"][-1] == 70


def test_old_days_are_not_in_the_sparkline() -> None:
    UsageDay.objects.create(day=timezone.now().date() - timedelta(days=40), tenant="key:1", model="m", prompt_tokens=9)
    assert usage_by_day() == {}


def test_each_key_has_its_days_and_the_last_one() -> None:
    row, _ = api_key_create(name="busy")
    api_key_create(name="new")
    today = timezone.now().date()
    for back, tokens in ((3, 40), (2, 20)):
        UsageDay.objects.create(
            day=today - timedelta(days=back), tenant=f"key:{row.pk}", model="m", completion_tokens=tokens
        )
    unused, busy = key_rows()
    assert (busy["tokens"], busy["most"], busy["last_day"]) == (60, 40, today - timedelta(days=2))
    assert busy["spark"].split()[-4:] == ["26,0.5", "27,5.0", "28,9.5", "29,9.5"]
    assert (unused["spark"], unused["last_day"]) == ("", None)


def test_words() -> None:
    row, _ = api_key_create(name="x", limits=KeyLimits(requests=1000), models=["a", "b"])
    assert key_words(row) == {
        "scopes": "files, generate, models",
        "models": "a, b",
        "limits": "1,000 requests a minute",
    }


def test_without_counters_nothing_is_said_of_energy(owner: Client) -> None:
    row, _ = api_key_create(name="busy")
    UsageDay.objects.create(day=timezone.now().date(), tenant=f"key:{row.pk}", model="m", prompt_tokens=70)
    energy_price_choose(per_kwh="0.3", currency="EUR", author_name="edwin")
    text = owner.get("/keys/").content.decode()
    assert "Energy" not in text and "EUR" not in text and "Cost" not in text


def measured() -> None:
    """Two keys of one model, whose device has used 7.2 kJ with work, 1.8 kJ without, and 3.6 kJ for another model."""
    today = timezone.now().date()
    for name, tokens in (("small", 250), ("large", 750)):
        row, _ = api_key_create(name=name)
        UsageDay.objects.create(day=today, tenant=f"key:{row.pk}", model="m", requests=1, prompt_tokens=tokens)
    for model, joules in (("m", 7200.0), ("", 1800.0), ("other", 3600.0)):
        EnergyDay.objects.create(day=today, device="box/package-0", source="rapl", model=model, joules=joules)
    energy_divide(today)


def test_energy_is_called_an_estimate_and_its_rule_is_on_the_page(owner: Client) -> None:
    measured()
    text = owner.get("/keys/").content.decode()
    for piece in ("Energy, estimated", "500 mWh", "1.5 Wh", "about 1.5 Wh", "is divided among that day",
                  "counts 1, a generated one 4",
                  "Measured in this time: 3.5 Wh, 3 Wh of it", "1 Wh of that belongs to no request"):  # fmt: skip
        assert piece in text, piece
    assert "Cost" not in text
    energy_price_choose(per_kwh="40", currency="ct", author_name="edwin")
    text = owner.get("/keys/").content.decode()
    for piece in ("0.060 ct", "0.020 ct", "price of 40.00 ct per kWh", "about 1.5 Wh, 0.060 ct"):
        assert piece in text, piece
    exported = b"".join(owner.get("/keys/?format=csv").streaming_content).decode().splitlines()
    assert exported[0].endswith("total_tokens,energy_wh,energy_cost,currency")
    assert sorted(line.split(",")[-4:] for line in exported[1:]) == [
        ["250", "0.5", "0.02", "ct"], ["750", "1.5", "0.06", "ct"],
    ]  # fmt: skip
    assert "Energy, estimated" not in owner.get("/keys/?from=2020-01-01&to=2020-01-02").content.decode()


def test_who_sees_usage_sees_its_energy(client: Client) -> None:
    measured()
    client.force_login(account("edwin", "operator"))
    assert "Energy, estimated" in client.get("/keys/").content.decode()
