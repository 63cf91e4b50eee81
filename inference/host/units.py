"""Numbers for people: bytes, counts. Standard library only."""

from __future__ import annotations


def format_bytes(size_bytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_count(count: float) -> str:
    """123157248 -> "123.2 M"."""
    value = float(count)
    for unit in ("", " k", " M"):
        if abs(value) < 1000:
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.1f} B"
