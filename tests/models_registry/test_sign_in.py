"""Attempts to sign in are limited by name and by address, on both pages, from every process."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from models_registry.models import SignInAttempt
from models_registry.sign_in import MAX_BY_ADDRESS, MAX_BY_NAME, MAX_BY_NAME_AND_ADDRESS, WINDOW_S, attempt_start

pytestmark = pytest.mark.django_db

RIGHT = "rotation-curve"


def sign_in(client: Client, password: str, name: str = "vera", path: str = "/login/", address: str = "192.0.2.1"):
    return client.post(path, {"username": name, "password": password}, REMOTE_ADDR=address)


@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
@pytest.mark.parametrize("address", ["192.0.2.1", "127.0.0.1"])
def test_after_too_many_attempts_even_the_right_password_waits(staff: User, client: Client, path: str, address: str):
    for _ in range(MAX_BY_NAME_AND_ADDRESS):
        assert sign_in(client, "wrong", path=path, address=address).status_code == 200
    text = sign_in(client, RIGHT, path=path, address=address).content.decode()
    assert "Too many attempts to sign in; at most 10 in 5 minutes. Try again in" in text
    assert "_auth_user_id" not in client.session


def test_the_name_counts_from_all_addresses_and_both_pages(staff: User, client: Client, monkeypatch):
    monkeypatch.setattr("models_registry.sign_in.MAX_BY_NAME", 12)
    for number in range(12):
        sign_in(client, "wrong", path=("/login/", "/admin/login/")[number % 2], address=f"192.0.2.{number}")
    assert "Too many" in sign_in(client, RIGHT, name="VERA", address="198.51.100.1").content.decode()
    assert "Too many" not in sign_in(client, "wrong", name="edwin").content.decode()


def test_one_address_cannot_keep_the_owner_of_a_name_out(staff: User, client: Client):
    assert MAX_BY_NAME > MAX_BY_ADDRESS
    for _ in range(MAX_BY_ADDRESS):
        sign_in(client, "wrong")
    assert "Too many" in sign_in(client, RIGHT).content.decode()
    assert sign_in(client, RIGHT, address="198.51.100.1").status_code == 302


def test_the_address_counts_for_all_names(staff: User, client: Client):
    for number in range(MAX_BY_ADDRESS):
        sign_in(client, "wrong", name=f"name{number}")
    assert "Too many" in sign_in(client, RIGHT).content.decode()
    assert sign_in(client, RIGHT, address="198.51.100.1").status_code == 302


def test_a_success_ends_the_count_and_time_does(staff: User, client: Client):
    for _ in range(MAX_BY_NAME_AND_ADDRESS - 1):
        sign_in(client, "wrong")
    assert sign_in(client, RIGHT).status_code == 302
    assert not SignInAttempt.objects.exists()
    for _ in range(MAX_BY_NAME_AND_ADDRESS):
        sign_in(client, "wrong")
    SignInAttempt.objects.update(created_at=timezone.now() - timedelta(seconds=WINDOW_S + 1))
    assert sign_in(client, RIGHT).status_code == 302


def test_going_on_trying_does_not_prolong_the_wait():
    for _ in range(MAX_BY_NAME_AND_ADDRESS):
        attempt_start(name="vera", address="")
    for _ in range(5):
        with pytest.raises(ValidationError):
            attempt_start(name="vera", address="")
    assert SignInAttempt.objects.count() == MAX_BY_NAME_AND_ADDRESS


def test_the_name_is_not_stored_as_it_was_typed():
    assert attempt_start(name="my secret password", address="").name.isalnum()


@pytest.mark.parametrize(
    ("addresses", "counted"),
    [
        (["2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:DB8:1:2:0::9"], "2001:db8:1:2::/64"),
        (["fe80::1%eth0", "fe80::2%eth1"], "fe80::/64"),
        (["::ffff:192.0.2.7", "192.0.2.7"], "192.0.2.7"),
        (["unix"], "unix"),
        ([""], ""),
    ],
)
def test_one_network_of_ipv6_counts_as_an_address(addresses: list[str], counted: str):
    assert {attempt_start(name="vera", address=address).address for address in addresses} == {counted}


def test_other_addresses_of_the_network_wait_too(staff: User, client: Client):
    for number in range(MAX_BY_NAME_AND_ADDRESS):
        sign_in(client, "wrong", address=f"2001:db8::{number:x}")
    assert "Too many" in sign_in(client, RIGHT, address="2001:db8::ffff").content.decode()
    assert sign_in(client, RIGHT, address="2001:db8:0:1::1").status_code == 302
