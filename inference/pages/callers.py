"""Say who a stored tenant is, and whether it can still call: keys by their names, accounts by theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.utils import timezone

from inference.access.accounts import can_sign_in
from inference.models import ApiKey
from inference.values.tenants import tenants_by_number


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, for people.

    Attributes:
        tenant: As it is stored: ``local``, ``key:N`` or ``user:N``.
        name: A key's name, or its public part; an account's name; otherwise the tenant.
        problem: Why nothing runs for it any more, such as ``its key was revoked``; empty: nothing is known.
    """

    tenant: str
    name: str
    problem: str = ""


def callers_of(tenants: Iterable[str]) -> dict[str, Caller]:
    """Return the callers of stored tenants, with two queries at most."""
    requested = set(tenants)
    found = {tenant: Caller(tenant, tenant) for tenant in requested}
    for kind, read, missing in (("key", _keys, "its key was deleted"), ("user", _accounts, "its account was deleted")):
        by_number = tenants_by_number(kind, requested)
        found |= {tenant: Caller(tenant, tenant, missing) for tenant in by_number.values()}
        if by_number:
            found |= {by_number[pk]: Caller(by_number[pk], name, problem) for pk, name, problem in read(by_number)}
    return found


def usage_callers(rows: Iterable[Mapping[str, Any]]) -> dict[str, Caller]:
    """Return the callers of ``usage_objects`` by the rows' ``key``: a key's public part, or a tenant without one."""
    names = {row["key"]: row["key_name"] for row in rows if "key" in row}
    accounts = callers_of(key for key in names if key.startswith("user:"))
    return {key: accounts.get(key) or Caller(key, name or key) for key, name in names.items()}


def caller_of(tenant: str) -> Caller:
    """Return the caller of one stored tenant."""
    return callers_of([tenant])[tenant]


def _keys(numbers: Iterable[int]) -> list[tuple[int, str, str]]:
    """Return number, name and problem of API keys."""
    now = timezone.now()
    rows: Any = ApiKey.objects.filter(pk__in=list(numbers))
    return [
        (
            pk,
            name or prefix,
            "its key was revoked" if revoked else "its key has expired" if expires and expires <= now else "",
        )
        for pk, prefix, name, revoked, expires in rows.values_list("pk", "prefix", "name", "revoked_at", "expires_at")
    ]


def _accounts(numbers: Iterable[int]) -> list[tuple[int, str, str]]:
    """Return number, name and problem of accounts."""
    return [
        (user.pk, user.get_username(), "" if can_sign_in(user) else "its account is inactive")
        for user in get_user_model().objects.filter(pk__in=list(numbers))
    ]
