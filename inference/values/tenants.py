"""Read tenants, which name the caller in stored rows: ``key:N``, ``user:N`` or ``local``."""

from __future__ import annotations

from collections.abc import Iterable


def tenants_by_number(kind: str, tenants: Iterable[str]) -> dict[int, str]:
    """Return the tenants of a kind by the numbers of their rows; without numbers that no row can have."""
    found = {}
    for tenant in tenants:
        name, _, number = tenant.partition(":")
        if name == kind and number.isdecimal() and len(number) < 19:
            found[int(number)] = tenant
    return found
