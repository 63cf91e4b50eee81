"""Pass the command line and the worker's identity to a process and its children by the environment.

Only ``blazr_site.settings`` reads settings from the environment. This module sets the variables that must exist before:
Django's settings module, how long threads of torch wait, and one internal variable with the command line and the
worker's identity.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

_VARIABLE = "_BLAZR_PROCESS"
"""Internal, not a setting: JSON of ``ProcessOptions``."""


NUM_SPINS = "10000"
"""Some tenths of a millisecond: far less than another program's turn, and more than most waits of two cores."""
SHORT_BASE = Path("/tmp")  # noqa: S108  # nosec B108
"""Directory for sockets where the user has none, or a path that is too long for one."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of the command line, and the identity of this process in the site.

    Attributes:
        options: Map of a variable to its option and the value as typed; a list of values for a repeatable option.
        config_file: Absolute path of ``--config``; None: not given.
        worker_id: Name of a worker that ``blazr serve`` starts; None: it chooses one.
        preload: Ids of the checkpoints that this worker loads at its start and keeps.
        is_child: Whether ``blazr serve`` started this process.
    """

    options: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    config_file: str | None = None
    worker_id: str | None = None
    preload: tuple[str, ...] = ()
    is_child: bool = False


def process_options() -> ProcessOptions:
    """Return the options of this process."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return ProcessOptions()
    values = json.loads(text)
    options = {name: (option, value) for name, (option, value) in values.pop("options").items()}
    return ProcessOptions(options=options, preload=tuple(values.pop("preload")), **values)


def use_options(options: ProcessOptions) -> None:
    """Set the options of this process; call it before the settings are read."""
    os.environ[_VARIABLE] = _to_json(options)


def runtime_base() -> Path:
    """Return the user's directory for sockets."""
    found = os.environ.get("XDG_RUNTIME_DIR")
    return Path(found) if found else SHORT_BASE


def use_settings() -> None:
    """Set DJANGO_SETTINGS_MODULE to this site's settings, unless it is set already."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "blazr_site.settings")


def use_short_waits() -> None:
    """Let threads of an operation that wait for each other leave the processor soon; call it before torch is imported.

    GNU's OpenMP, which torch's builds for Linux bring, reads this when it is loaded. Where the user says how threads
    wait, it stays as it is.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", NUM_SPINS)


def child_environment(
    *,
    options: Mapping[str, str] | None = None,
    worker_id: str | None = None,
    preload: tuple[str, ...] = (),
    **variables: str,
) -> dict[str, str]:
    """Return the environment of a child of ``blazr serve``: this process's environment with the given changes.

    Args:
        options: Variables to set as options of the command line do.
        worker_id, preload: See ``ProcessOptions``.
        variables: Further environment variables.
    """
    own = process_options()
    changed = {
        name: (own.options[name][0] if name in own.options else name, value) for name, value in (options or {}).items()
    }
    child = replace(own, options={**own.options, **changed}, worker_id=worker_id, preload=tuple(preload), is_child=True)
    return {**os.environ, "PYTHONUNBUFFERED": "1", **variables, _VARIABLE: _to_json(child)}


def _to_json(options: ProcessOptions) -> str:
    return json.dumps(asdict(options))
