"""Return the caller of a staff member's session, with the scopes that its permissions give."""

from __future__ import annotations

from typing import Any

from inference.values.principal import SCOPES, Principal


def principal_of_user(user: Any) -> Principal | None:
    """Return the caller of a session; None: nobody, or no active staff. Reads the database.

    The permission ``inference.scope_NAME`` gives the scope NAME; superusers have all.

    Args:
        user: A Django account, an anonymous one, or None.
    """
    if user is None or not (user.is_authenticated and user.is_active and getattr(user, "is_staff", False)):
        return None
    scopes = frozenset(name for name in SCOPES if user.has_perm(f"inference.scope_{name}"))
    return Principal("user", f"user:{user.pk}", user.get_username(), scopes=scopes)
