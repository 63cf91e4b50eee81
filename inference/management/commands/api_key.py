"""``manage.py api_key``: create, list and revoke API keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from inference.access.api_keys import api_key_create, api_key_revoke
from inference.errors import BlazrError
from inference.models import ApiKey
from inference.models.readable_rows import readable_rows


class Command(BaseCommand):
    """Keys for programs that use the API."""

    help = "create, list and revoke API keys"

    def add_arguments(self, parser: CommandParser) -> None:
        """One subcommand each."""
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a key and print it; it can't be shown again")
        create.add_argument("name", help="what the key is for")
        create.add_argument("--days", type=int, help="days until it expires; default: never")
        actions.add_parser("list", help="show all keys by their public part")
        revoke = actions.add_parser("revoke", help="end a key for good")
        revoke.add_argument("prefix", help="the key's public part, as list shows it")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand."""
        try:
            getattr(self, f"_{options['action']}")(options)
        except BlazrError as error:
            raise CommandError(error.message) from None

    def _create(self, options: dict[str, Any]) -> None:
        days: int | None = options["days"]
        if days is not None and not 1 <= days <= 36_500:
            raise CommandError(f"--days is {days}, it must be from 1 to 36500.")
        _, key = api_key_create(
            name=options["name"], expires_at=None if days is None else timezone.now() + timedelta(days=days)
        )
        self.stdout.write(key)

    def _list(self, options: dict[str, Any]) -> None:
        for row in readable_rows(ApiKey.objects.all()):
            state = "revoked" if row.revoked_at else f"until {row.expires_at:%Y-%m-%d}" if row.expires_at else "valid"
            self.stdout.write(f"{row.prefix}  {row.created_at:%Y-%m-%d}  {state:16}  {row.name}")

    def _revoke(self, options: dict[str, Any]) -> None:
        row = api_key_revoke(prefix=options["prefix"])
        self.stdout.write(f"{row.name} ({row.prefix}) is revoked.")
