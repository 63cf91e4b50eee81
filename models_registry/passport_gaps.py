"""Decide whether a checkpoint has a passport that holds for it, and what is missing otherwise.

A passport holds for the files and facts that it was made of: their digest is its identity.
"""

from __future__ import annotations

import hashlib
import json

from inference.models.readable_rows import readable_rows
from models_registry.models import Checkpoint, Passport

FAILED = "failed"
_STAMPED = ("name", "size_bytes", "mtime_ns", "inode")


def passport_identity(checkpoint: Checkpoint) -> str:
    """Return the digest of a checkpoint's files, as they were inspected, and of the facts set by hand."""
    stamps = [[stamp.get(member) for member in _STAMPED] for stamp in checkpoint.file_stamps]
    facts = checkpoint.overrides.filter(cleared_at__isnull=True).order_by("fact").values_list("fact", "value")
    return hashlib.sha256(json.dumps([stamps, list(map(list, facts))]).encode()).hexdigest()


def passport_list(checkpoint: Checkpoint) -> list[Passport]:
    """Return a checkpoint's passports, newest first."""
    return readable_rows(Passport.objects.filter(source=checkpoint))


def passport_gap(checkpoint: Checkpoint) -> str:
    """Return what a checkpoint lacks for a promotion, as the end of a sentence; empty: nothing."""
    rows = passport_list(checkpoint)
    done = [row for row in rows if row.state == Passport.State.DONE]
    if any(row.state == Passport.State.RUNNING for row in rows):
        return "its passport is being made"
    if not done:
        return "it has none; make one on its page"
    identity = passport_identity(checkpoint)
    current = next((row for row in done if row.identity == identity), None)
    if current is None:
        return "its files or facts have changed since it was made; make another one on its page"
    failed = [str(entry["name"]) for entry in current.shown_entries if entry["state"] == FAILED]
    return f"it failed: {', '.join(failed)}" if failed else ""
