"""The user's cache folder: files that can be made again, and may be deleted at any time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return the folder ``name`` of blazr in the user's cache folder; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "blazr" / name
