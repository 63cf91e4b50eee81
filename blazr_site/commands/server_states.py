"""Run ``blazr state list`` and ``blazr state load``: the states in a server's data directory."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from django.conf import settings
from django.utils import timezone
from rich.text import Text

from blazr_site.commands.models import progress_bar
from blazr_site.commands.tables import output_console, table
from inference.errors import InvalidRequest
from inference.files.store import READ_BYTES, FileWriter
from inference.host.units import format_bytes
from inference.llm.state_header import read_state_header
from inference.models import StoredState
from inference.models.readable_rows import readable_rows
from inference.records.usage_report import key_names, tenant_of_key
from inference.states.services import StateFacts, check_state_name, state_create, state_object, unexpired_states
from inference.values.messages import StateOrder
from inference.values.principal import LOCAL


def list_states(arguments: argparse.Namespace) -> int:
    """Print the states of all callers or one, the last used first."""
    rows = unexpired_states().order_by("-last_used_at", "-pk")
    if arguments.key is not None:
        rows = rows.filter(tenant=_tenant(arguments.key))
    found = readable_rows(rows)
    names = key_names(row.tenant for row in found)
    if arguments.json:
        objects = [state_object(row) | {"key": names.get(row.tenant, (row.tenant, ""))[0]} for row in found]
        sys.stdout.write(json.dumps(objects, indent=2) + "\n")
        return 0
    console = output_console()
    if not found:
        console.print("No states yet. Try: blazr state load FILE --name NAME")
        return 0
    short = ("tokens", "size", "last used", "expires")
    listed = table("name", "model", *short, "key", whole=short)
    for row in found:
        cells = (
            row.name,
            row.model,
            f"{row.num_tokens:,}",
            format_bytes(row.file.size_bytes),
            f"{row.last_used_at:%Y-%m-%d %H:%M}",
            _expiry(row),
            names.get(row.tenant, (row.tenant, ""))[0],
        )
        listed.add_row(*(Text(cell) for cell in cells))
    console.print(listed)
    return 0


def load_state(arguments: argparse.Namespace) -> int:
    """Copy a file into the server's store, and give it a name."""
    path = Path(arguments.file)
    check_state_name(arguments.name)
    read_state_header(path)  # before anything is copied
    tenant = _tenant(arguments.key)
    writer = FileWriter(settings.BLAZR_MAX_FILE_BYTES)
    try:
        with path.open("rb") as file, progress_bar("Copying the state") as report:
            size = max(path.stat().st_size, 1)
            while piece := file.read(READ_BYTES):
                writer.write(piece)
                report(min(writer.size_bytes / size, 1.0))
        writer.flush()
        # Of the bytes that are kept: the file may have changed meanwhile.
        header = read_state_header(writer.path, path.name)
    except BaseException as error:
        writer.discard()
        if isinstance(error, OSError):
            raise InvalidRequest(f"{str(path)!r} can't be read: {error.strerror}.", param="file") from None
        raise
    row = state_create(
        writer=writer,
        facts=StateFacts.of_file(header),
        order=StateOrder(
            name=arguments.name,
            tenant=tenant,
            model=header.model,
            is_pinned=arguments.pin,
            expires_s=None,
            replaces=arguments.replace,
        ),
    )
    sys.stdout.write(
        f"{row.name}: {row.num_tokens:,} tokens of {row.model or 'a model without a name'}, "
        f"{format_bytes(row.file.size_bytes)}; expires: {_expiry(row)}\n"
    )
    return 0


def _tenant(key: str) -> str:
    """Return the tenant of a key's public part.

    Raises:
        InvalidRequest: There is no such key.
    """
    tenant = tenant_of_key(key)
    if tenant == key and key != LOCAL.tenant and not StoredState.objects.filter(tenant=key).exists():
        raise InvalidRequest(
            f"--key {key[:40]!r} is no key's public part; 'blazr key list' shows them, and local stands for callers "
            "without a key.",
            param="key",
        )
    return tenant


def _expiry(row: StoredState) -> str:
    if row.is_pinned:
        return "pinned"
    if row.file.expires_at is None:
        return "never"
    days = (row.file.expires_at - timezone.now()).total_seconds() / 86400
    return f"in {days:.0f} days" if days >= 2 else f"in {days * 24:.0f} hours"
