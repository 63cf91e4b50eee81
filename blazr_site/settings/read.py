"""Read typed settings, and declare each variable for the documentation and the check of names.

The error of a wrong value names the place (option, variable, or file and key), the value and the allowed values.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
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
_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([a-z]*)")


class Wrong(ValueError):
    """A value is not valid; the message names the allowed values."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A setting that a person may set.

    Attributes:
        name: Name of the environment variable.
        kind: Type of the value.
        default: The default as people write it; empty: none, or a computed one.
        help: Meaning of the variable.
        is_secret: Whether the value must not be shown.
    """

    name: str
    kind: str
    default: str
    help: str
    is_secret: bool = False

    @property
    def key(self) -> str:
        """The variable's key in ``blazr.toml``."""
        return sources.toml_key(self.name)


KNOWN: dict[str, Variable] = {}
"""Every variable that has been declared, by name."""

CLIENT_VARIABLES = ("BLAZR_API_KEY", "BLAZR_SERVER")
"""What ``blazr chat`` and ``blazr push`` read; no settings of a server."""

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
    """Read a string; with ``choices``, one of them."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or (choices and value not in choices):
            raise Wrong(f"one of {', '.join(choices)}" if choices else "a string")
        return value

    variable = Variable(name, " | ".join(choices) or "text", default or "", help, is_secret)
    found = _read(variable, parse)
    return default if found is None else found


def flag(name: str, default: bool, *, help: str = "") -> bool:
    """Read a switch: 1/true/yes/on or 0/false/no/off."""
    found = _read(Variable(name, "switch", "true" if default else "false", help), _flag)
    return default if found is None else found


def integer(name: str, default: int | None, *, low: int, high: int, help: str = "") -> int | None:
    """Read an integer within a closed range."""
    variable = Variable(name, "integer", "" if default is None else str(default), help)
    found = _read(variable, lambda value: parse_integer(value, low, high))
    return default if found is None else found


def required_integer(name: str, default: int, *, low: int, high: int, help: str = "") -> int:
    """``integer`` for variables that always have a value."""
    found = integer(name, default, low=low, high=high, help=help)
    return default if found is None else found


def size_bytes(name: str, default: int | None, *, low: int = 0, help: str = "") -> int | None:
    """Read a number of bytes, with or without a unit: ``8GiB``, ``500MB``, ``1048576``."""
    variable = Variable(name, "bytes", "" if default is None else show_size(default), help)
    found = _read(variable, lambda value: parse_size(value, low))
    return default if found is None else found


def required_size_bytes(name: str, default: int, *, low: int = 0, help: str = "") -> int:
    """``size_bytes`` for variables that always have a value."""
    found = size_bytes(name, default, low=low, help=help)
    return default if found is None else found


def path(name: str, default: str | None, *, help: str = "") -> Path | None:
    """Read a path and make it absolute; a path in a file is relative to the file's folder."""
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
    """Read a list: comma-separated, or an array of strings in a file."""

    def parse(value: Any) -> list[str]:
        if isinstance(value, str):
            return [item.strip() for item in value.split(",") if item.strip()]
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return value
        raise Wrong("a list of strings")

    found = _read(Variable(name, "list", ",".join(default), help), parse)
    return list(default) if found is None else found


def speculative(name: str, *, help: str = "") -> SpeculativeOptions | None:
    """Read options of speculative decoding with ``SpeculativeOptions.parse``; unset: off."""

    def parse(value: Any) -> SpeculativeOptions:
        try:
            return SpeculativeOptions.parse(_string(value))
        except (InvalidRequest, Wrong):
            raise Wrong("ngram, mtp or draft:MODEL, and perhaps ,k=NUMBER") from None

    return _read(Variable(name, "ngram | mtp | draft:MODEL", "", help), parse)


def pairs(name: str, parsers: Mapping[str, Callable[[Any], int]], *, kind: str, help: str = "") -> dict[str, int]:
    """Read named numbers: ``rpm=600,tpm=20000``, or a table in a file."""
    return _read(Variable(name, kind, "", help), lambda value: parse_pairs(value, parsers)) or {}


def custom(name: str, parse: Callable[[Any], T], *, kind: str, default: str = "", help: str = "") -> T | None:
    """Read a value with its own parser; ``parse`` raises ``Wrong``."""
    return _read(Variable(name, kind, default, help), parse)


def parse_integer(value: Any, low: int, high: int) -> int:
    """Read an integer within a closed range."""
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
    """Parse a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = shorten(value)
    match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or match[2] not in _UNITS:
        raise Wrong("a number of bytes such as 8GiB, 500MB or 1048576")
    parsed = float(match[1]) * _UNITS[match[2]] if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    if not math.isfinite(parsed) or parsed < low:
        raise Wrong(f"at least {show_size(low)}")
    return int(parsed)


def parse_pairs(value: Any, parsers: Mapping[str, Callable[[Any], int]]) -> dict[str, int]:
    """Parse named numbers of a string or a table; each name has its parser."""
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
    """Format a number of bytes: 1 << 30 -> "1GiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def shorten(value: object) -> str:
    """Return a value for an error message: a string in quotes, cut if too long."""
    try:
        shown = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    except ValueError:  # an integer with more digits than Python prints
        return "too large a number"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def warnings() -> list[tuple[str, str]]:
    """Return (sentence, advice) for each environment variable that is unknown or retired."""
    found = []
    for name in sources.environment_names():
        if name in RETIRED:
            old = RETIRED[name]
            state = "is retired and works in this version only" if old.is_read else "is retired and has no effect"
            found.append((f"The environment variable {name} {state}.", old.advice))
        elif name not in KNOWN and name not in CLIENT_VARIABLES:
            near = difflib.get_close_matches(name, KNOWN, 1)
            advice = f"Did you mean {near[0]}?" if near else "python -m blazr_site.settings lists the known ones."
            found.append((f"The environment variable {name} is unknown and has no effect.", advice))
    return found


def check_file() -> None:
    """Refuse unknown keys of ``blazr.toml``, and secrets in a file that others can read.

    Raises:
        ImproperlyConfigured: Names the nearest known key, or the advice for a retired one.
    """
    file = sources.config_file()
    secret = sorted(variable.key for variable in KNOWN.values() if variable.is_secret and variable.key in file.values)
    if file.path is not None and secret and file.path.stat().st_mode & 0o077:
        raise ImproperlyConfigured(
            f"{file.path} has {', '.join(secret)}, and other users of this machine can read it. Run: chmod go-rwx "
            f"{shlex.quote(str(file.path))}"
        )
    keys = {variable.key for variable in KNOWN.values()} | OTHER_KEYS
    retired = {sources.toml_key(name): old for name, old in RETIRED.items()}
    for key in file.values:
        if key in keys:
            continue
        near = difflib.get_close_matches(key, keys, 1)
        if key in retired:
            raise ImproperlyConfigured(f"{file.path}: {key} is retired. {retired[key].advice}")
        raise ImproperlyConfigured(f"{file.path}: {key} is unknown." + (f" Did you mean {near[0]}?" if near else ""))


def place_of(name: str) -> str:
    """Return where the value of a variable was set: option, variable, or file and key; unset: the variable."""
    found = sources.find(name)
    return name if found is None else found.place


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
