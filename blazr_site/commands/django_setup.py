"""For commands that read the database: prepare the data directory, set Django up, bring the tables up to date."""

from __future__ import annotations

import argparse

from blazr_site.process_environment import ProcessOptions, use_options, use_settings


def add_data_dir_argument(parser: argparse.ArgumentParser) -> None:
    """``--data-dir``."""
    parser.add_argument("--data-dir", help="directory of the database and uploads (default: BLAZR_DATA_DIR or ./data)")


def set_up_django(arguments: argparse.Namespace) -> None:
    """Make the ORM usable in this process; cheap when the tables are current."""
    if arguments.data_dir:
        use_options(ProcessOptions({"BLAZR_DATA_DIR": ("--data-dir", arguments.data_dir)}))
    use_settings()
    from blazr_site.settings.storage import prepare_data_dir

    prepare_data_dir()
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
