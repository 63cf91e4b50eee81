"""What a process of blazr gives to itself and to its children through the environment.

Settings are read from the environment by ``blazr_site.settings`` only. Here is what has to be there before they are
read: Django's settings module, and one internal variable with the command line and the worker's place in the site.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

_VARIABLE = "_BLAZR_PROCESS"
"""Internal, not a setting: JSON of ``ProcessOptions``."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What the command line said, and which process of the site this is.

    Attributes:
        options: Variable to the option that sets it and the value as it was typed; a list for a repeatable one.
        config_file: Of ``--config``, absolute; None: not given.
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
    """The options of this process."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return ProcessOptions()
    values = json.loads(text)
    options = {name: (option, value) for name, (option, value) in values.pop("options").items()}
    return ProcessOptions(options=options, preload=tuple(values.pop("preload")), **values)


def use_options(options: ProcessOptions) -> None:
    """Set the options of this process; to be called before the settings are read."""
    os.environ[_VARIABLE] = _to_json(options)


def use_settings() -> None:
    """Choose the settings of this site, unless others are chosen already."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "blazr_site.settings")


def child_environment(
    *,
    options: Mapping[str, str] | None = None,
    worker_id: str | None = None,
    preload: tuple[str, ...] = (),
    **variables: str,
) -> dict[str, str]:
    """Environment of a child of ``blazr serve``: this process's, with what is different there.

    Args:
        options: Variables to set as the command line does.
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
