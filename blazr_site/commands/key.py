"""Run ``blazr key``: create, list and revoke API keys; a running server follows within a second."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta

from django.utils import timezone
from rich.text import Text

from blazr_site.commands.arguments import KEY_LIMITS
from blazr_site.commands.tables import output_console, table
from inference.access.api_keys import api_key_create, api_key_revoke
from inference.errors import InvalidRequest
from inference.models import ApiKey
from inference.models.readable_rows import readable_rows
from inference.values.limits import KeyLimits
from inference.values.principal import DEFAULT_SCOPES, KEY_MARK

MAX_DAYS = 36_500


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand."""
    if arguments.action == "create":
        return _create(arguments)
    if arguments.action == "list":
        return _list()
    return _revoke(arguments.prefix)


def _create(arguments: argparse.Namespace) -> int:
    """Print only the key to standard output, so that a script can read it."""
    names = [name for name in (arguments.name, arguments.named) if name is not None]
    if len(names) != 1:
        raise InvalidRequest("give the key one name: blazr key create NAME.", param="name")
    row, key = api_key_create(
        name=names[0],
        expires_at=_expiry(arguments.days, arguments.expires),
        scopes=arguments.scope or DEFAULT_SCOPES,
        models=arguments.model or (),
        limits=KeyLimits(arguments.rpm, arguments.tpm, arguments.concurrent, arguments.lines),
    )
    sys.stdout.write(f"{key}\n")
    until = "" if row.expires_at is None else f" It expires on {row.expires_at:%Y-%m-%d} (UTC)."
    sys.stderr.write(f"Keep it now: it is not stored and can't be shown again.{until}\n")
    return 0


def _expiry(days: int | None, date: str | None) -> datetime | None:
    if days is not None and date is not None:
        raise InvalidRequest("give one of --days and --expires.", param="expires")
    if date is not None:
        try:
            moment = datetime.fromisoformat(date)
        except ValueError:
            raise InvalidRequest(
                f"--expires is {date[:40]!r}, it must be a date such as 2027-01-31.", param="expires"
            ) from None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if days is None:
        return None
    if not 1 <= days <= MAX_DAYS:
        raise InvalidRequest(f"--days is {days}, it must be from 1 to {MAX_DAYS}.", param="days")
    return timezone.now() + timedelta(days=days)


def _rules(row: ApiKey) -> str:
    """Return a short text of a key's scopes, models and limits, without defaults."""
    parts = [] if set(row.scopes) == set(DEFAULT_SCOPES) else ["+".join(row.scopes)]
    parts += [f"only {', '.join(row.allowed_models)}"] if row.allowed_models else []
    limits = (row.requests_per_minute, row.tokens_per_minute, row.max_concurrent, row.max_queued_lines)
    parts += [f"{option} {limit}" for option, limit in zip(KEY_LIMITS, limits, strict=True) if limit is not None]
    return "; ".join(parts)


def _list() -> int:
    rows = readable_rows(ApiKey.objects.all())
    console = output_console()
    if not rows:
        console.print("No API keys yet. Try: blazr key create NAME")
        return 0
    short = ("prefix", "created", "state")
    # Only the name may be folded; a prefix in two lines could not be copied.
    listed = table(*short, "name", *(["rules"] if any(_rules(row) for row in rows) else []), whole=short)
    now = timezone.now()
    for row in rows:
        if row.revoked_at is not None:
            state = f"revoked {row.revoked_at:%Y-%m-%d}"
        elif row.expires_at is None:
            state = "valid"
        else:
            state = f"{'expired' if row.expires_at <= now else 'valid until'} {row.expires_at:%Y-%m-%d}"
        cells = (row.prefix, f"{row.created_at:%Y-%m-%d}", state, row.name, _rules(row))
        listed.add_row(*(Text(cell) for cell in cells[: len(listed.columns)]))
    console.print(listed)
    return 0


def _revoke(text: str) -> int:
    # Only the public part of a whole key is used, because an error must not show the secret.
    prefix = text.removeprefix(f"{KEY_MARK}_").partition("_")[0]
    row = api_key_revoke(prefix=prefix)
    sys.stdout.write(f"{row.name} ({row.prefix}) is revoked.\n")
    return 0
