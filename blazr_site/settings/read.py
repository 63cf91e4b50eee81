"""Typed readers of settings. Reading a variable declares it, for the documentation and the check for misspelt names.

A wrong value is refused with its place (option, variable, or file and key), the value and what is allowed.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from django.core.exceptions import ImproperlyConfigured

from blazr_site.settings import sources
from blazr_site.settings.retired import RETIRED
from inference.errors import InvalidRequest
from inference.values.speculative_options import SpeculativeOptions

T = TypeVar("T")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[_letter] = _UNITS[f"{_letter}ib"] = 1024**_power
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


class Wrong(ValueError):
    """A value that can't be used; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A setting that a person may set.

    Attributes:
        name: Of the environment variable.
        kind: What it holds.
        default: As people write it; empty: none, or one that depends.
        help: What it does.
        is_secret: Whether its value must not be shown.
    """

    name: str
    kind: str
    default: str
    help: str
    is_secret: bool = False

    @property
    def key(self) -> str:
        """Its key in ``blazr.toml``."""
        return sources.toml_key(self.name)


KNOWN: dict[str, Variable] = {}
"""Every variable that has been declared, by name."""

OTHER_KEYS = {"models"}
"""Keys of ``blazr.toml`` without a variable."""


@overload
def text(name: str, default: str, *, choices: Sequence[str] = (), help: str = "", is_secret: bool = False) -> str: ...


@overload
def text(
    name: str, default: None = None, *, choices: Sequence[str] = (), help: str = "", is_secret: bool = False
) -> str | None: ...


def text(
    name: str, default: str | None = None, *, choices: Sequence[str] = (), help: str = "", is_secret: bool = False
) -> str | None:
    """A string; with ``choices``, one of them."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or (choices and value not in choices):
            raise Wrong(f"one of {', '.join(choices)}" if choices else "a string")
        return value

    variable = Variable(name, " | ".join(choices) or "text", default or "", help, is_secret)
    found = _read(variable, parse)
    return default if found is None else found


def flag(name: str, default: bool, *, help: str = "") -> bool:
    """A switch: 1/true/yes/on or 0/false/no/off."""
    found = _read(Variable(name, "switch", "true" if default else "false", help), _flag)
    return default if found is None else found


def integer(name: str, default: int | None, *, low: int, high: int, help: str = "") -> int | None:
    """A whole number within a closed range."""
    variable = Variable(name, "integer", "" if default is None else str(default), help)
    found = _read(variable, lambda value: parse_integer(value, low, high))
    return default if found is None else found


def required_integer(name: str, default: int, *, low: int, high: int, help: str = "") -> int:
    """``integer`` for variables that always have a value."""
    found = integer(name, default, low=low, high=high, help=help)
    return default if found is None else found


def size_bytes(name: str, default: int | None, *, low: int = 0, help: str = "") -> int | None:
    """A number of bytes, with or without a unit: ``8GiB``, ``500MB``, ``1048576``."""
    variable = Variable(name, "bytes", "" if default is None else show_size(default), help)
    found = _read(variable, lambda value: parse_size(value, low))
    return default if found is None else found


def required_size_bytes(name: str, default: int, *, low: int = 0, help: str = "") -> int:
    """``size_bytes`` for variables that always have a value."""
    found = size_bytes(name, default, low=low, help=help)
    return default if found is None else found


def path(name: str, default: str | None, *, help: str = "") -> Path | None:
    """A path, made absolute; in a file it is relative to the file's folder."""
    found = _read(Variable(name, "path", default or "", help), _string)
    if found is None:
        return Path(default).absolute() if default else None
    origin = sources.find(name)
    file = sources.config_file().path if origin is not None and origin.source == "file" else None
    return ((file.parent if file else Path.cwd()) / Path(found).expanduser()).absolute()


def required_path(name: str, default: str, *, help: str = "") -> Path:
    """``path`` for variables that always have a value."""
    return path(name, default, help=help) or Path(default).absolute()


def texts(name: str, default: Sequence[str] = (), *, help: str = "") -> list[str]:
    """A list: with commas between, in a file an array of strings."""

    def parse(value: Any) -> list[str]:
        if isinstance(value, str):
            return [item.strip() for item in value.split(",") if item.strip()]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        raise Wrong("a list of strings")

    found = _read(Variable(name, "list", ",".join(default), help), parse)
    return list(default) if found is None else found


def speculative(name: str, *, help: str = "") -> SpeculativeOptions | None:
    """How to draft tokens, as ``SpeculativeOptions.parse`` reads it; unset: not at all."""

    def parse(value: Any) -> SpeculativeOptions:
        try:
            return SpeculativeOptions.parse(_string(value))
        except (InvalidRequest, Wrong):
            raise Wrong("ngram or draft:MODEL, and perhaps ,k=NUMBER") from None

    return _read(Variable(name, "ngram | draft:MODEL", "", help), parse)


def pairs(name: str, parsers: Mapping[str, Callable[[Any], int]], *, kind: str, help: str = "") -> dict[str, int]:
    """Numbers with names: ``rpm=600,tpm=20000``, in a file a table."""
    return _read(Variable(name, kind, "", help), lambda value: parse_pairs(value, parsers)) or {}


def custom(name: str, parse: Callable[[Any], T], *, kind: str, default: str = "", help: str = "") -> T | None:
    """A value of a form of its own; ``parse`` raises ``Wrong``."""
    return _read(Variable(name, kind, default, help), parse)


def parse_integer(value: Any, low: int, high: int) -> int:
    """A whole number within a closed range."""
    expected = f"a whole number from {low} to {high}"
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise Wrong(expected) from None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Wrong(expected)
    return value


def parse_size(value: Any, low: int = 0) -> int:
    """A number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        raise Wrong("a number of bytes such as 8GiB, 500MB or 1048576")
    parsed = float(match[1]) * _UNITS[match[2]] if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    if not math.isfinite(parsed) or parsed < low:
        raise Wrong(f"at least {show_size(low)}")
    return int(parsed)


def parse_pairs(value: Any, parsers: Mapping[str, Callable[[Any], int]]) -> dict[str, int]:
    """Named numbers, of a string or a table; each name has its parser."""
    if isinstance(value, str):
        parts = (part.partition("=") for part in value.split(",") if part.strip())
        value = {name.strip(): text.strip() for name, _, text in parts}
    if not isinstance(value, dict) or not value.keys() <= parsers.keys():
        raise Wrong(f"of the form {','.join(f'{name}=NUMBER' for name in parsers)} (or fewer of them)")
    found = {}
    for name, given in value.items():
        try:
            found[name] = parsers[name](given)
        except Wrong as error:
            raise Wrong(f"{name}=N with N {error}") from None
    return found


def show_size(value: int) -> str:
    """1 << 30 -> "1GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def shorten(value: object) -> str:
    """A value for an error message: quoted if it is a string, and not too long."""
    shown = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def warnings() -> list[tuple[str, str]]:
    """Variables of the environment with our prefix that have no effect or won't have one: sentence and advice."""
    found = []
    for name in sources.environment_names():
        if name in RETIRED:
            old = RETIRED[name]
            state = "is retired and works in this version only" if old.is_read else "is retired and has no effect"
            found.append((f"The environment variable {name} {state}.", old.advice))
        elif name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1)
            advice = f"Did you mean {near[0]}?" if near else "python -m blazr_site.settings lists the known ones."
            found.append((f"The environment variable {name} is unknown and has no effect.", advice))
    return found


def check_file() -> None:
    """Refuse keys of ``blazr.toml`` that nothing reads.

    Raises:
        ImproperlyConfigured: With the nearest known key, or what a retired one became.
    """
    file = sources.config_file()
    keys = {variable.key for variable in KNOWN.values()} | OTHER_KEYS
    retired = {sources.toml_key(name): old for name, old in RETIRED.items()}
    for key in file.values:
        if key in keys:
            continue
        near = difflib.get_close_matches(key, keys, 1)
        if key in retired:
            raise ImproperlyConfigured(f"{file.path}: {key} is retired. {retired[key].advice}")
        raise ImproperlyConfigured(f"{file.path}: {key} is unknown." + (f" Did you mean {near[0]}?" if near else ""))


def _read(variable: Variable, parse: Callable[[Any], T]) -> T | None:
    KNOWN[variable.name] = variable
    found = sources.find(variable.name)
    if found is None:
        return None
    try:
        return parse(found.value)
    except Wrong as error:
        shown = "wrong" if variable.is_secret else shorten(found.value)
        raise ImproperlyConfigured(f"{found.place} is {shown}, it must be {error}.") from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise Wrong("a string")
    return value


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE:
        return True
    if isinstance(value, str) and value.lower() in _FALSE:
        return False
    raise Wrong("true or false")
