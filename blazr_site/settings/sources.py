"""Look up settings in the command line, the environment and the file ``blazr.toml``.

The first source with a value wins. An empty environment variable has no value.
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
# The directory that is made in it is checked to be private (embedded_redis.make_runtime_dir).
_OTHER_KEYS = {"OTEL_EXPORTER_OTLP_ENDPOINT": "traces_endpoint"}
"""Keys of variables whose names other programs define."""


@dataclass(frozen=True, slots=True)
class Found:
    """A value that was set.

    Attributes:
        value: A string from the command line and the environment, a TOML value from a file.
        source: One of the three sources.
        place: Where to change the value: option, variable, or file and key.
    """

    value: Any
    source: Literal["command line", "environment", "file"]
    place: str


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The contents of a ``blazr.toml``.

    Attributes:
        path: Absolute path; None: there is no file.
        values: The top-level keys and their values.
    """

    path: Path | None
    values: Mapping[str, Any]


def toml_key(name: str) -> str:
    """``BLAZR_MAX_NUM_SEQS`` -> ``max_num_seqs``."""
    return _OTHER_KEYS.get(name) or name.removeprefix("BLAZR_").lower()


def find(name: str) -> Found | None:
    """Return the value of a variable; None: it isn't set."""
    found = _outside_of_files(name)
    if found is not None:
        return found
    file, key = config_file(), toml_key(name)
    if key not in file.values:
        return None
    return Found(file.values[key], "file", f"{file.path}: {key}")


def from_environment(name: str) -> str | None:
    """Return the environment variable; None: unset or empty."""
    return os.environ.get(name) or None


def environment_names() -> list[str]:
    """Return the names of this project's environment variables that aren't empty."""
    return sorted(name for name, value in os.environ.items() if name.startswith("BLAZR_") and value)


@lru_cache(maxsize=1)
def config_file() -> ConfigFile:
    """Return the file of ``--config``, else that of the current folder, else that of the data directory.

    Raises:
        ImproperlyConfigured: The file can't be read, or isn't TOML.
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
        ImproperlyConfigured: The file can't be read, or isn't TOML.
    """
    path = path.expanduser().absolute()
    try:
        # Editors on Windows write a byte order mark, which tomllib refuses.
        return ConfigFile(path, tomllib.loads(path.read_bytes().decode("utf-8-sig")))
    except OSError as error:
        raise ImproperlyConfigured(f"{path} can't be read: {error.strerror}.") from error
    except RecursionError:
        raise ImproperlyConfigured(f"{path} is nested too deeply.") from None
    except ValueError as error:  # of tomllib, of the decoding, or of an integer with more digits than Python reads
        raise ImproperlyConfigured(f"{path} is not a TOML file: {error}.") from error


def _outside_of_files(name: str) -> Found | None:
    options = process_options().options
    if name in options:
        option, value = options[name]
        return Found(value, "command line", option)
    value_ = from_environment(name)
    return None if value_ is None else Found(value_, "environment", name)
