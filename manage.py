#!/usr/bin/env python
"""Django's management commands."""

import sys

from blazr_site.process_environment import use_settings


def main() -> None:
    """Run the command of the command line."""
    use_settings()
    from django.core.management import execute_from_command_line

    from blazr_site.settings.storage import prepare_data_dir

    prepare_data_dir()
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
