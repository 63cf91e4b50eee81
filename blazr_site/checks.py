"""Define system checks that report at the start the errors that would occur at first use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from blazr_site.settings import read


@register
def data_directory(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the data directory is writable and its secrets are private."""
    directory: Path = settings.BLAZR_DATA_DIR
    if not directory.exists():
        return []  # the first process that starts creates it
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        return [
            Error(
                f"BLAZR_DATA_DIR {str(directory)!r} is not a directory that this user can write.",
                hint="Give the directory to the user that runs blazr, or set BLAZR_DATA_DIR to another one.",
                id="blazr.E001",
            )
        ]
    found: list[CheckMessage] = []
    for name in ("secret_key", "admin_password", "api_key"):
        secret = directory / name
        if secret.exists() and secret.stat().st_mode & 0o077:
            found.append(
                Error(f"{str(secret)!r} can be read by other users.", hint=f"chmod 600 {secret}", id="blazr.E002")
            )
    return found


@register
def variable_names(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Warn of variables with blazr's prefix that are misspelt or retired."""
    return [Warning(sentence, hint=advice, id="blazr.W001") for sentence, advice in read.warnings()]


@register(deploy=True)
def host_names(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Warn if a site beyond loopback has no BLAZR_ALLOWED_HOSTS."""
    if "*" in settings.ALLOWED_HOSTS:
        return [
            Warning(
                "BLAZR_ALLOWED_HOSTS is not set, so that the site answers to every host name.",
                hint="Set it to the names under which the site is reached.",
                id="blazr.W002",
            )
        ]
    return []
