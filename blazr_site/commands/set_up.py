"""Set a process up for a command: options, settings, Django and database tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from blazr_site.commands.arguments import OPTION_OF, Needs
from blazr_site.process_environment import ProcessOptions, use_options, use_settings


def set_up(arguments: argparse.Namespace, needs: Needs) -> None:
    """Set up the parts that a command needs.

    Raises:
        ImproperlyConfigured: A setting is wrong.
    """
    if needs == "nothing":
        return
    use_options(options_of(arguments))
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


def options_of(arguments: argparse.Namespace) -> ProcessOptions:
    """Return the settings of the command line."""
    given = {
        name: (OPTION_OF[name], value)
        for name, value in vars(arguments).items()
        if name in OPTION_OF and value is not None
    }
    file = getattr(arguments, "config", None)
    return ProcessOptions(given, config_file=None if file is None else str(Path(file).expanduser().absolute()))
