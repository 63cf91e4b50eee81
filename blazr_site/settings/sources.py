"""Where values of settings come from: the command line, the environment, a file ``blazr.toml``.

The first of them that has a value wins. An empty environment variable has none.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from django.core.exceptions import ImproperlyConfigured

from blazr_site.process_environment import process_options

FILE_NAME = "blazr.toml"
DATA_DIR, DEFAULT_DATA_DIR = "BLAZR_DATA_DIR", "data"
_OTHER_KEYS = {"OTEL_EXPORTER_OTLP_ENDPOINT": "traces_endpoint"}
"""Keys of variables that other programs named."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value that somebody has set.

    Attributes:
        value: A string from the command line and the environment, a TOML value from a file.
        source: Which of the three.
        place: What to look at to change it: option, variable, or file and key.
    """

    value: Any
    source: Literal["command line", "environment", "file"]
    place: str


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A ``blazr.toml`` that was read.

    Attributes:
        path: Absolute; None: there is no file.
        values: Its top-level keys.
    """

    path: Path | None
    values: Mapping[str, Any]


def toml_key(name: str) -> str:
    """``BLAZR_MAX_NUM_SEQS`` -> ``max_num_seqs``."""
    return _OTHER_KEYS.get(name) or name.removeprefix("BLAZR_").lower()


def find(name: str) -> Found | None:
    """The value of a variable; None: nobody has set it."""
    found = _outside_of_files(name)
    if found is not None:
        return found
    file, key = config_file(), toml_key(name)
    if key not in file.values:
        return None
    return Found(file.values[key], "file", f"{file.path}: {key}")


def from_environment(name: str) -> str | None:
    """The variable of the environment alone; None: unset or empty."""
    return os.environ.get(name) or None


def environment_names(prefix: str = "BLAZR_") -> list[str]:
    """Variables of the environment that begin so and aren't empty."""
    return sorted(name for name, value in os.environ.items() if name.startswith(prefix) and value)


def runtime_base() -> Path:
    """The user's directory for sockets."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")


@lru_cache(maxsize=1)
def config_file() -> ConfigFile:
    """The file of this process: that of ``--config``, or one in the current folder, or one in the data directory.

    Raises:
        ImproperlyConfigured: It can't be read, or isn't TOML.
    """
    given = process_options().config_file
    if given is not None:
        return read_file(Path(given))
    data_dir = _outside_of_files(DATA_DIR)
    folders = (Path.cwd(), Path(data_dir.value if data_dir else DEFAULT_DATA_DIR).expanduser().absolute())
    for path in (folder / FILE_NAME for folder in folders):
        if path.is_file():
            return read_file(path)
    return ConfigFile(None, {})


def read_file(path: Path) -> ConfigFile:
    """Read a ``blazr.toml``.

    Raises:
        ImproperlyConfigured: It can't be read, or isn't TOML.
    """
    path = path.expanduser().absolute()
    try:
        with path.open("rb") as file:
            return ConfigFile(path, tomllib.load(file))
    except OSError as error:
        raise ImproperlyConfigured(f"{path} can't be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{path} is not a TOML file: {error}.") from error


def _outside_of_files(name: str) -> Found | None:
    options = process_options().options
    if name in options:
        option, value = options[name]
        return Found(value, "command line", option)
    value_ = from_environment(name)
    return None if value_ is None else Found(value_, "environment", name)
