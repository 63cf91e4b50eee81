"""Return the caller of a staff member's session, with the scopes that its permissions give."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user, get_user_model
from django.http import HttpRequest

from inference.values.principal import SCOPES, Principal


def can_sign_in(user: Any) -> bool:
    """Whether an account (None, or an anonymous one: no) can sign in to the pages."""
    return user is not None and bool(user.is_active and user.is_staff)


def principal_of_user(user: Any) -> Principal | None:
    """Return the caller of a session; None: nobody, or no active staff. Reads the database.

    The permission ``inference.scope_NAME`` gives the scope NAME; superusers have all.

    Args:
        user: A Django account, an anonymous one, or None.
    """
    if not can_sign_in(user):
        return None
    scopes = frozenset(name for name in SCOPES if user.has_perm(f"inference.scope_{name}"))
    return Principal("user", f"user:{user.pk}", user.get_username(), scopes=scopes)


def principal_of_staff(user: Any) -> Principal:
    """Return the caller of a session that is active staff, as every page has checked. Reads the database.

    Raises:
        TypeError: It isn't.
    """
    found = principal_of_user(user)
    if found is None:
        raise TypeError(f"{user!r} is no active staff")
    return found


def can_load(principal: Principal) -> bool:
    """Whether the caller is an account that may load and unload models on their pages; a key isn't one.

    Reads the database.
    """
    if principal.kind != "user":
        return False
    user = get_user_model().objects.filter(pk=int(principal.tenant.partition(":")[2])).first()
    return user is not None and user.has_perm("models_registry.load_checkpoint")


def account_now(scope: Mapping[str, Any]) -> Any:
    """Return the account of a WebSocket's session as the database has it now. Reads the database.

    A connection outlives the sign-out, the end of the session, and changes of the account and its role.

    Args:
        scope: Of the connection, with its session.

    Returns:
        None: The session has none any more.
    """
    session = scope.get("session")
    if session is None or session.session_key is None:
        return None
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session.session_key)
    found = get_user(request)
    return found if found.is_authenticated else None
