"""Accounts with the roles that migrations make."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from unittest import mock

from django.apps import apps
from django.contrib.auth.models import Group, User

_migration = import_module("inference.migrations.0010_scopes_and_roles")
ROLES: dict[str, Any] = {
    role: {app: [name.replace("_batchschedule", "_schedule") for name in names] for app, names in by_app.items()}
    for role, by_app in _migration.ROLES.items()
}
"""Permissions by role and app, by their names of today."""


def make_roles() -> None:
    """Make the roles, or what is missing of them."""
    with mock.patch.object(_migration, "ROLES", ROLES):
        _migration.create_roles(apps, None)


def account(name: str, role: str | None = None, *, password: str | None = None) -> User:
    """A staff account; ``role`` is a group, ``superuser``, or None for an account without any permission."""
    if role == "superuser":
        return User.objects.create_superuser(name, password=password)
    user = User.objects.create_user(name, password=password, is_staff=True)
    if role is not None:
        if not Group.objects.filter(name=role).exists():  # a test that emptied the database has removed the roles
            make_roles()
        user.groups.add(Group.objects.get(name=role))
    return user
