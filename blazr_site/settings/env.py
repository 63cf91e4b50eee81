"""Typed readers of environment variables; the only place that touches ``os.environ``.

A bad value is refused with the variable's name, the value and what would be right. Every variable
is declared by reading it, so that the documentation, ``docker-compose.yml`` and the check for
misspelt names compare themselves with ``KNOWN``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from inference.errors import InvalidRequest
from inference.values.speculative_options import SpeculativeOptions

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[_letter] = _UNITS[f"{_letter}ib"] = 1024**_power
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: what it holds, its default as people write it, and what it does."""

    name: str
    kind: str
    default: str
    help: str


KNOWN: dict[str, Variable] = {}
"""Every variable that has been declared, by name."""


def text(name: str, default: str | None = None, *, choices: Sequence[str] = (), help: str = "") -> str | None:
    """A string; with ``choices``, one of them. An empty variable counts as unset."""
    value = _read(name, " | ".join(choices) or "text", default or "", help)
    if value is None:
        return default
    if choices and value not in choices:
        raise _bad(name, value, f"one of {', '.join(choices)}")
    return value


def flag(name: str, default: bool, *, help: str = "") -> bool:
    """A switch: 1/true/yes/on or 0/false/no/off."""
    value = _read(name, "switch", "true" if default else "false", help)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise _bad(name, value, "true or false")


def integer(name: str, default: int | None, *, low: int, high: int, help: str = "") -> int | None:
    """A whole number within a closed range."""
    value = _read(name, "integer", "" if default is None else str(default), help)
    if value is None:
        return default
    try:
        number = int(value)
    except ValueError:
        raise _bad(name, value, f"a whole number from {low} to {high}") from None
    if not low <= number <= high:
        raise _bad(name, value, f"a whole number from {low} to {high}")
    return number


def required_integer(name: str, default: int, *, low: int, high: int, help: str = "") -> int:
    """``integer`` for variables that always have a value."""
    number = integer(name, default, low=low, high=high, help=help)
    return default if number is None else number


def number(name: str, default: float, *, low: float, high: float, help: str = "") -> float:
    """A finite number within a closed range."""
    value = _read(name, "number", f"{default:g}", help)
    if value is None:
        return default
    try:
        parsed = float(value)
    except ValueError:
        raise _bad(name, value, f"a number from {low:g} to {high:g}") from None
    if not low <= parsed <= high:
        raise _bad(name, value, f"a number from {low:g} to {high:g}")
    return parsed


def size_bytes(name: str, default: int | None, *, low: int = 0, help: str = "") -> int | None:
    """A number of bytes, with or without a unit: ``8GiB``, ``500MB``, ``1048576``."""
    value = _read(name, "bytes", "" if default is None else _show_size(default), help)
    if value is None:
        return default
    match = _SIZE.fullmatch(value.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise _bad(name, value, "a number of bytes such as 8GiB, 500MB or 1048576")
    parsed = int(float(match[1]) * _UNITS[match[2]])
    if parsed < low:
        raise _bad(name, value, f"at least {_show_size(low)}")
    return parsed


def required_size_bytes(name: str, default: int, *, low: int = 0, help: str = "") -> int:
    """``size_bytes`` for variables that always have a value."""
    parsed = size_bytes(name, default, low=low, help=help)
    return default if parsed is None else parsed


def path(name: str, default: str, *, help: str = "") -> Path:
    """A path, made absolute."""
    return Path(_read(name, "path", default, help) or default).expanduser().absolute()


def texts(name: str, default: Sequence[str] = (), *, help: str = "") -> list[str]:
    """A comma-separated list."""
    value = _read(name, "list", ",".join(default), help)
    if value is None:
        return list(default)
    return [item.strip() for item in value.split(",") if item.strip()]


def speculative(name: str, *, help: str = "") -> SpeculativeOptions | None:
    """How to guess ahead, as ``SpeculativeOptions.parse`` reads it; unset: not at all."""
    value = _read(name, "ngram | draft:MODEL", "", help)
    if value is None:
        return None
    try:
        return SpeculativeOptions.parse(value)
    except InvalidRequest:
        raise _bad(name, value, "ngram or draft:MODEL, and perhaps ,k=NUMBER") from None


def unknown_names(prefix: str = "BLAZR_") -> list[str]:
    """Variables of the environment with our prefix that nothing reads: most likely misspelt."""
    return sorted(name for name in os.environ if name.startswith(prefix) and name not in KNOWN)


def _read(name: str, kind: str, default: str, help: str) -> str | None:
    KNOWN[name] = Variable(name, kind, default, help)
    return os.environ.get(name) or None


def _bad(name: str, value: str, wanted: str) -> ImproperlyConfigured:
    shown = value if len(value) <= 60 else value[:57] + "..."
    return ImproperlyConfigured(f"{name} is {shown!r}, it must be {wanted}.")


def _show_size(value: int) -> str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)
