"""Set a process up for a command: options, settings, Django and database tables."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from blazr_site.commands.arguments import Needs
from blazr_site.commands.options import OPTION_OF
from blazr_site.process_environment import ProcessOptions, use_options, use_settings
from blazr_site.running_servers import is_running, running_servers
from inference.errors import InvalidRequest

DATA_DIR = "BLAZR_DATA_DIR"
DEFAULT_DATA_DIR = "data"
CONFIG_FILE = "blazr.toml"
FOLLOWING = ("list", "ps")
"""Commands that look at a server; without ``--data-dir`` at the one that runs."""


def set_up(arguments: argparse.Namespace, needs: Needs) -> None:
    """Set up the parts that a command needs.

    Raises:
        ImproperlyConfigured: A setting is wrong.
    """
    if needs == "nothing":
        return
    use_options(options_of(arguments))
    if getattr(arguments, "command", None) in FOLLOWING:
        follow_running_server(arguments)
    use_settings()
    # Importing the settings package reads all settings, so the options must be set before. "applications" and
    # "settings" don't use the data directory.
    if needs in ("site", "database"):
        from blazr_site.settings.storage import prepare_data_dir  # Django's settings are read by it

        prepare_data_dir()
    if needs == "settings":
        return
    import django
    from django.core.management import call_command

    django.setup()
    if needs == "database":
        call_command("migrate", interactive=False, verbosity=0)


def follow_running_server(arguments: argparse.Namespace) -> None:
    """Use the data directory of the server that runs, if nobody named one and none runs on the usual one.

    Raises:
        InvalidRequest: Several servers run.
    """
    is_named = getattr(arguments, DATA_DIR, None) or os.environ.get(DATA_DIR) or getattr(arguments, "config", None)
    if is_named or Path(CONFIG_FILE).exists() or is_running(Path(DEFAULT_DATA_DIR).absolute()):
        return
    servers = running_servers()
    if len(servers) > 1:
        named = ", ".join(f"--data-dir {server}" for server in servers)
        raise InvalidRequest(f"{len(servers)} servers run here; say which one: {named}.", param="data_dir")
    if servers:
        setattr(arguments, DATA_DIR, str(servers[0]))
        use_options(options_of(arguments))
        sys.stderr.write(f"note: the server that runs here, on the data directory {servers[0]}\n")


def options_of(arguments: argparse.Namespace) -> ProcessOptions:
    """Return the settings of the command line."""
    given = {
        name: (OPTION_OF[name], value)
        for name, value in vars(arguments).items()
        if name in OPTION_OF and value is not None
    }
    file = getattr(arguments, "config", None)
    return ProcessOptions(given, config_file=None if file is None else str(Path(file).expanduser().absolute()))
