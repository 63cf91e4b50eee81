"""The settings in force and the source of each value, for ``blazr config`` and the page of settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from blazr_site.settings import read, sources

MASK = "********"
_PASSWORD_OPTION = re.compile(r"(?<=[?&]password=)[^&#]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class InForce:
    """A setting in force.

    Attributes:
        key: Key in ``blazr.toml``.
        variable: Environment variable.
        value: The value as given, or the default; None: no value. Secrets are masked.
        source: ``command line``, ``environment``, ``file`` or ``default``.
        place: Option, variable, or file and key; empty for a default.
    """

    key: str
    variable: str
    value: Any
    source: str
    place: str


def settings_in_force() -> list[tuple[read.Variable, InForce]]:
    """Return all settings by key, each with its value."""
    variables = sorted(read.KNOWN.values(), key=lambda item: item.key)
    return [(variable, _in_force(variable)) for variable in variables]


def masked(value: Any) -> str:
    """Return a masked secret: a URL without its password; any other value hidden completely."""
    scheme, mark, rest = str(value).partition("://")
    if not mark:
        return MASK
    login, at, place = rest.rpartition("@")  # the last one: a password may have been written with another
    user, colon, password = login.partition(":")
    return f"{scheme}://{user}{colon}{MASK if password else ''}{at}{_PASSWORD_OPTION.sub(MASK, place)}"


def _in_force(variable: read.Variable) -> InForce:
    found = sources.find(variable.name)
    if found is None:
        return InForce(variable.key, variable.name, variable.default or None, "default", "")
    value = masked(found.value) if variable.is_secret else found.value
    return InForce(variable.key, variable.name, value, found.source, found.place)
