"""``blazr key``: make, list and revoke the API keys of a data directory; a running server sees it within a second."""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta

from rich.console import Console
from rich.table import Table
from rich.text import Text

from blazr_site.commands.django_setup import add_data_dir_argument, set_up_django
from inference.errors import InvalidRequest

HELP = "create, list and revoke API keys"
MAX_DAYS = 36_500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand each."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it; it can't be shown again")
    create.add_argument("name", help="what the key is for")
    create.add_argument("--days", type=int, metavar="N", help="days until it expires (default: never)")
    listing = actions.add_parser("list", help="show all keys by their public part")
    revoke = actions.add_parser("revoke", help="end a key for good")
    revoke.add_argument("prefix", help="the key's public part, as list shows it, or the whole key")
    for action in (create, listing, revoke):
        add_data_dir_argument(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand."""
    set_up_django(arguments)
    if arguments.action == "create":
        return _create(arguments.name, arguments.days)
    if arguments.action == "list":
        return _list()
    return _revoke(arguments.prefix)


def _create(name: str, days: int | None) -> int:
    """Print the key to standard output and nothing else there, so that a script can take it."""
    from django.utils import timezone

    from inference.auth import api_key_create

    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InvalidRequest(f"--days is {days}, it must be from 1 to {MAX_DAYS}.", param="days")
    expires_at = None if days is None else timezone.now() + timedelta(days=days)
    row, key = api_key_create(name=name, expires_at=expires_at)
    sys.stdout.write(f"{key}\n")
    until = "" if row.expires_at is None else f" It expires on {row.expires_at:%Y-%m-%d} (UTC)."
    sys.stderr.write(f"Keep it now: it is not stored and can't be shown again.{until}\n")
    return 0


def _list() -> int:
    from django.utils import timezone

    from inference.models import ApiKey

    rows = list(ApiKey.objects.all())
    console = Console()
    if not rows:
        console.print("No API keys yet. Try: blazr key create NAME")
        return 0
    table = Table(box=None)
    # Only the name, which is free text, may be folded: a prefix in two lines could not be copied.
    for heading in ("prefix", "created", "state"):
        table.add_column(heading, no_wrap=True)
    table.add_column("name", overflow="fold")
    now = timezone.now()
    for row in rows:
        if row.revoked_at is not None:
            state = f"revoked {row.revoked_at:%Y-%m-%d}"
        elif row.expires_at is None:
            state = "valid"
        else:
            state = f"{'expired' if row.expires_at <= now else 'valid until'} {row.expires_at:%Y-%m-%d}"
        cells = (row.prefix, f"{row.created_at:%Y-%m-%d}", state, row.name)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    return 0


def _revoke(text: str) -> int:
    from inference.auth import KEY_MARK, api_key_revoke

    # Of a whole key only the public part goes on: an error must not show the rest.
    prefix = text.removeprefix(f"{KEY_MARK}_").partition("_")[0]
    row = api_key_revoke(prefix=prefix)
    sys.stdout.write(f"{row.name} ({row.prefix}) is revoked.\n")
    return 0
