"""Accounts with the roles that a migration makes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group, User

ROLES: dict[str, Any] = import_module("inference.migrations.0010_scopes_and_roles").ROLES


def account(name: str, role: str | None = None, *, password: str | None = None) -> User:
    """A staff account; ``role`` is a group, ``superuser``, or None for an account without any permission."""
    if role == "superuser":
        return User.objects.create_superuser(name, password=password)
    user = User.objects.create_user(name, password=password, is_staff=True)
    if role is not None:
        if not Group.objects.filter(name=role).exists():  # a test that emptied the database has removed the roles
            import_module("inference.migrations.0010_scopes_and_roles").create_roles(apps, None)
        user.groups.add(Group.objects.get(name=role))
    return user
