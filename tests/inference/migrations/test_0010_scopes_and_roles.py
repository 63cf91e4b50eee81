"""The migration to scopes and roles: what keys and accounts from before it may do afterwards."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User

from inference.access.accounts import principal_of_user
from inference.models import ApiKey
from inference.values.principal import DEFAULT_SCOPES, SCOPES
from tests.accounts import ROLES, account, make_roles

migration = import_module("inference.migrations.0010_scopes_and_roles")
pytestmark = pytest.mark.django_db


def test_ordinary_keys_stay_as_they_are_and_admin_keys_list_what_they_include():
    keys = {
        name: ApiKey.objects.create(name=name, prefix=name, digest="", scopes=scopes)
        for name, scopes in {"old": list(DEFAULT_SCOPES), "narrow": ["files"], "boss": ["admin"]}.items()
    }
    migration.list_newer_scopes(apps, None)
    found = {name: set(ApiKey.objects.get(pk=key.pk).scopes) for name, key in keys.items()}
    assert found == {"old": set(DEFAULT_SCOPES), "narrow": {"files"}, "boss": set(SCOPES)}


def test_staff_without_permissions_become_members():
    account("other", "viewer")
    User.objects.create_user("vera", is_staff=True)
    edwin = User.objects.create_user("edwin", is_staff=True)
    edwin.user_permissions.add(Permission.objects.get(codename="scope_models"))
    make_roles()
    migration.give_accounts_a_role(apps, None)
    names = {user.username: [group.name for group in user.groups.all()] for user in User.objects.all()}
    assert names == {"other": ["viewer"], "vera": ["member"], "edwin": []}


@pytest.mark.parametrize(
    ("role", "scopes"),
    [
        (None, set()),
        ("viewer", {"models"}),
        ("member", {"models", "generate", "files"}),
        ("operator", set(SCOPES)),
        ("superuser", set(SCOPES)),
    ],
)
def test_a_session_has_the_scopes_of_its_role(role: str | None, scopes: set[str]):
    found = principal_of_user(account("vera", role))
    assert found is not None
    assert found.scopes == scopes


def test_the_roles_name_permissions_that_the_models_define():
    known = {(item.content_type.app_label, item.codename) for item in Permission.objects.select_related("content_type")}
    named = {(app, name) for role in ROLES.values() for app, names in role.items() for name in names}
    assert named <= known
