"""Define system checks that report at the start the errors that would occur at first use."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from blazr_site.settings import read
from blazr_site.settings.storage import readable_secrets
from inference.host.confinement import confinement


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
    return [
        Error(
            f"{str(path)!r} can be read by other users of this machine.",
            hint=f"Run: chmod go-rwx {shlex.quote(str(path))}",
            id="blazr.E002",
        )
        for path in readable_secrets(directory)
    ]


@register
def confinement_of_children(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Warn if the kernel can't deny the network and files to the child processes that read checkpoints."""
    hint = "Use Linux 6.7 or newer with Landlock and seccomp, or serve only checkpoints that you trust."
    return [Warning(gap, hint=hint, id="blazr.W003") for gap in confinement().gaps]


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
