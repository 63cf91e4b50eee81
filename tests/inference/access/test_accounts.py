"""The account of a connection, as it is now."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client

from inference.access.accounts import account_now, principal_of_staff, principal_of_user
from tests.accounts import account

pytestmark = pytest.mark.django_db


def test_an_account_is_read_anew():
    user, client = account("vera", "operator"), Client()
    client.force_login(user)
    scope = {"session": client.session}
    assert account_now(scope) == user and principal_of_user(account_now(scope)).tenant == f"user:{user.pk}"
    user.set_password("another")  # which ends the account's sessions
    user.save()
    assert account_now(scope) is None
    client.force_login(user)
    scope = {"session": client.session}
    user.is_active = False
    user.save()
    assert account_now(scope) is None


def test_without_a_session_there_is_no_account():
    store = import_module(settings.SESSION_ENGINE).SessionStore
    for scope in ({}, {"session": store()}, {"session": store("nothing")}):
        assert account_now(scope) is None
    assert not Session.objects.exists()


def test_only_active_staff_is_a_caller_of_pages():
    user = account("vera", "viewer")
    assert principal_of_staff(user) == principal_of_user(user)
    user.is_staff = False
    with pytest.raises(TypeError, match="no active staff"):
        principal_of_staff(user)
