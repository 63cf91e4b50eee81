#!/usr/bin/env python
"""Django's management commands."""

import os
import sys


def main() -> None:
    """Run the command of the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "blazr_site.settings")
    from django.core.management import execute_from_command_line

    from blazr_site.settings.storage import prepare_data_dir

    prepare_data_dir()
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
