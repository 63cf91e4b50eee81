"""Decide which paths of the server pages and requests may name: what lies in directories of the operator's settings.

These are the models of ``BLAZR_MODEL`` (``--model``) and ``[[models]]``, and tables with ``watch = true``, which name a
directory for this purpose only. Runs are watched there, and models, adapters and tokenizers read.
"""

from __future__ import annotations

import os
from pathlib import Path

from django.conf import settings

from inference.errors import PermissionRefused
from inference.host.disk import path_exists

_BY_HAND = ", or run blazr watch DIR on the server's machine"


def allowed_directories() -> list[Path]:
    """Return the directories that the settings name, without links; those for watching come first."""
    named = [Path(name).expanduser() for name in settings.BLAZR_WATCHED_DIRECTORIES]
    named += [Path(model.model).expanduser() for model in settings.BLAZR_MODELS]
    return [path.resolve() for path in named if path_exists(path) and path.is_dir()]


def is_allowed(directory: Path) -> bool:
    """Whether the server may watch a directory; links are followed first, wherever they lead."""
    place = directory.resolve()
    return any(place.is_relative_to(parent) for parent in allowed_directories())


def check_allowed(directory: Path, *, param: str = "directory") -> None:
    """Refuse a directory, or a file, that isn't in one that the settings name, whether it exists or not.

    Args:
        param: Name of the value in the request.

    Raises:
        PermissionRefused: The settings name neither it nor one that it is in.
    """
    if not is_allowed(directory):
        named = Path(os.path.normpath(directory.absolute()))
        is_link = any(named.is_relative_to(parent) for parent in allowed_directories())
        raise PermissionRefused(
            f"{str(directory)[:300]!r} {'leads by a link to what ' if is_link else ''}is in no directory of the "
            "server's settings; name one in blazr.toml ([[models]] with watch = true)"
            f"{_BY_HAND if param == 'directory' else ''}.",
            param=param,
        )
